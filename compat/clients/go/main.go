// Does with the Go client what it is told on standard input, one JSON object a line, and answers on
// standard output likewise; compat/clients/driver.py has the form. It ends when its input ends.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"sync"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

const longestLine = 64 << 20

// A request is one line. Fields that it lacks are zero.
type request struct {
	ID   int64  `json:"id"`
	Do   string `json:"do"`
	Name string `json:"name"`
	clientSettings
	sendRequest
	consumeRequest
	pullRequest
}

// The settings that each kind of client has. Clients of one instance share connections.
type clientSettings struct {
	Namesrv    string `json:"namesrv"`
	Instance   string `json:"instance"`
	Group      string `json:"group"`
	Namespace  string `json:"namespace"`
	VipChannel bool   `json:"vipChannel"`
	Trace      bool   `json:"trace"`
	AccessKey  string `json:"accessKey"`
	SecretKey  string `json:"secretKey"`
}

// What requests are signed with; without an access key they are not.
func (s *clientSettings) credentials() primitive.Credentials {
	return primitive.Credentials{AccessKey: s.AccessKey, SecretKey: s.SecretKey}
}

// The clients that were started, by name.
type driver struct {
	writing sync.Mutex
	out     *json.Encoder

	lock        sync.Mutex
	producers   map[string]rocketmq.Producer
	transactors map[string]rocketmq.TransactionProducer
	consumers   map[string]rocketmq.PushConsumer
	pullers     map[string]*puller
}

func main() {
	rlog.SetLogLevel("fatal")
	d := &driver{
		out:         json.NewEncoder(os.Stdout),
		producers:   map[string]rocketmq.Producer{},
		transactors: map[string]rocketmq.TransactionProducer{},
		consumers:   map[string]rocketmq.PushConsumer{},
		pullers:     map[string]*puller{},
	}
	d.tell(map[string]any{"ready": true})
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, longestLine)
	for lines.Scan() {
		var asked request
		if err := json.Unmarshal(lines.Bytes(), &asked); err != nil {
			fmt.Fprintln(os.Stderr, "no request:", err)
			os.Exit(1)
		}
		go d.answer(&asked)
	}
}

func (d *driver) tell(line map[string]any) {
	d.writing.Lock()
	defer d.writing.Unlock()
	if err := d.out.Encode(line); err != nil {
		os.Exit(1) // nobody listens any more
	}
}

func (d *driver) answer(asked *request) {
	done, err := d.execute(asked)
	if err != nil {
		d.tell(map[string]any{"id": asked.ID, "error": describeError(err)})
		return
	}
	d.tell(map[string]any{"id": asked.ID, "done": done})
}

func (d *driver) execute(asked *request) (any, error) {
	switch asked.Do {
	case "producer":
		return true, d.startProducer(asked)
	case "send":
		return d.send(asked)
	case "request":
		return d.request(asked)
	case "transactor":
		return true, d.startTransactor(asked)
	case "transact":
		return d.transact(asked)
	case "consume":
		return true, d.startConsumer(asked)
	case "puller", "poller":
		return true, d.startPuller(asked)
	case "pull":
		return d.pull(asked)
	case "poll":
		return d.poll(asked)
	case "close":
		return true, d.close(asked.Name)
	default:
		return nil, fmt.Errorf("the Go client cannot %s", asked.Do)
	}
}

func (d *driver) close(name string) error {
	d.lock.Lock()
	producer, transactor := d.producers[name], d.transactors[name]
	consumer, puller := d.consumers[name], d.pullers[name]
	delete(d.producers, name)
	delete(d.transactors, name)
	delete(d.consumers, name)
	delete(d.pullers, name)
	d.lock.Unlock()
	if consumer != nil {
		if err := consumer.Shutdown(); err != nil {
			return err
		}
	}
	if puller != nil {
		if err := puller.shutdown(); err != nil {
			return err
		}
	}
	if transactor != nil {
		return transactor.Shutdown()
	}
	if producer != nil {
		return producer.Shutdown()
	}
	return nil
}

// The client tells the server's code only within its text.
var codeInText = regexp.MustCompile(`CODE: (\d+),?\s+DESC: (.*)`)

func describeError(err error) map[string]any {
	told := map[string]any{"class": fmt.Sprintf("%T", err), "message": err.Error()}
	if found := codeInText.FindStringSubmatch(err.Error()); found != nil {
		told["code"], _ = strconv.Atoi(found[1])
		told["message"] = found[2]
	}
	return told
}
