package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

type sendRequest struct {
	TimeoutMs int        `json:"timeoutMs"`
	Retries   int        `json:"retries"`
	Mode      string     `json:"mode"`
	Messages  []outgoing `json:"messages"`
	outgoing             // of a request, or of a message in a transaction
}

func producerOptions(asked *request) []producer.Option {
	options := []producer.Option{
		producer.WithNameServer(primitive.NamesrvAddr{asked.Namesrv}),
		producer.WithInstanceName(asked.Instance),
		producer.WithGroupName(asked.Group),
		producer.WithNamespace(asked.Namespace),
		producer.WithCredentials(asked.credentials()),
		producer.WithVIPChannel(asked.VipChannel),
		producer.WithSendMsgTimeout(time.Duration(asked.TimeoutMs) * time.Millisecond),
		producer.WithRetry(asked.Retries),
		producer.WithQueueSelector(&chosenOrNext{producer.NewRoundRobinQueueSelector()}),
	}
	if asked.Trace {
		options = append(options, producer.WithTrace(traceConfig(asked)))
	}
	return options
}

func traceConfig(asked *request) *primitive.TraceConfig {
	return &primitive.TraceConfig{
		GroupName:    asked.Group,
		Access:       primitive.Local,
		NamesrvAddrs: []string{asked.Namesrv},
		Credentials:  asked.credentials(),
	}
}

// Takes the queue that a message names, else the next one.
type chosenOrNext struct{ next producer.QueueSelector }

func (s *chosenOrNext) Select(
	message *primitive.Message, queues []*primitive.MessageQueue, lastBroker string,
) *primitive.MessageQueue {
	if message.Queue == nil {
		return s.next.Select(message, queues, lastBroker)
	}
	for _, queue := range queues {
		if queue.QueueId == message.Queue.QueueId {
			return queue
		}
	}
	return nil
}

func (d *driver) startProducer(asked *request) error {
	started, err := rocketmq.NewProducer(producerOptions(asked)...)
	if err != nil {
		return err
	}
	if err := started.Start(); err != nil {
		return err
	}
	d.lock.Lock()
	defer d.lock.Unlock()
	d.producers[asked.Name] = started
	return nil
}

func (d *driver) producer(name string) rocketmq.Producer {
	d.lock.Lock()
	defer d.lock.Unlock()
	return d.producers[name]
}

// Sends each of "messages" and answers with the result or the error of each, in order.
func (d *driver) send(asked *request) (any, error) {
	sender := d.producer(asked.Name)
	messages := make([]*primitive.Message, len(asked.Messages))
	for i := range asked.Messages {
		messages[i] = asked.Messages[i].message()
	}
	results := make([]map[string]any, len(messages))
	background := context.Background()
	switch asked.Mode {
	case "sync":
		for i, message := range messages {
			results[i] = describeSend(sender.SendSync(background, message))
		}
		return results, nil
	case "oneway":
		for _, message := range messages {
			if err := sender.SendOneWay(background, message); err != nil {
				return nil, err
			}
		}
		return []any{}, nil
	case "async":
		var outstanding sync.WaitGroup
		outstanding.Add(len(messages))
		for i, message := range messages {
			told := func(_ context.Context, result *primitive.SendResult, err error) {
				results[i] = describeSend(result, err)
				outstanding.Done()
			}
			if err := sender.SendAsync(background, told, message); err != nil {
				return nil, err
			}
		}
		outstanding.Wait()
		return results, nil
	case "batch":
		result, err := sender.SendSync(background, messages...)
		if err != nil {
			return nil, err
		}
		return []any{describeSend(result, nil)}, nil
	default:
		return nil, fmt.Errorf("no such mode: %s", asked.Mode)
	}
}

func (d *driver) request(asked *request) (any, error) {
	timeout := time.Duration(asked.TimeoutMs) * time.Millisecond
	reply, err := d.producer(asked.Name).Request(
		context.Background(), timeout, asked.outgoing.message())
	if err != nil {
		return nil, err
	}
	return map[string]any{"body": reply.Body, "properties": reply.GetProperties()}, nil
}

func (d *driver) startTransactor(asked *request) error {
	decisions := &decisions{func(message *primitive.MessageExt) {
		d.tell(map[string]any{"consumer": asked.Name, "message": describe(message)})
	}}
	started, err := rocketmq.NewTransactionProducer(decisions, producerOptions(asked)...)
	if err != nil {
		return err
	}
	if err := started.Start(); err != nil {
		return err
	}
	d.lock.Lock()
	defer d.lock.Unlock()
	d.transactors[asked.Name] = started
	return nil
}

func (d *driver) transact(asked *request) (any, error) {
	d.lock.Lock()
	transactor := d.transactors[asked.Name]
	d.lock.Unlock()
	result, err := transactor.SendMessageInTransaction(
		context.Background(), asked.outgoing.message())
	if err != nil {
		return nil, err
	}
	return describeSend(result.SendResult, nil), nil
}

// Decides transactions as their messages ask: the property "decisions" has what to say at first, at
// the first check, at the second and so on, parted by commas; the last one is for all that follow.
type decisions struct{ checked func(*primitive.MessageExt) }

func (d *decisions) ExecuteLocalTransaction(
	message *primitive.Message,
) primitive.LocalTransactionState {
	return decision(message, 0)
}

func (d *decisions) CheckLocalTransaction(
	message *primitive.MessageExt,
) primitive.LocalTransactionState {
	d.checked(message)
	check, err := strconv.Atoi(message.GetProperty(primitive.PropertyTranscationCheckTimes))
	if err != nil {
		return primitive.UnknowState
	}
	return decision(&message.Message, check)
}

func decision(message *primitive.Message, check int) primitive.LocalTransactionState {
	all := strings.Split(message.GetProperty("decisions"), ",")
	switch all[min(check, len(all)-1)] {
	case "commit":
		return primitive.CommitMessageState
	case "rollback":
		return primitive.RollbackMessageState
	default:
		return primitive.UnknowState
	}
}

// What Java's SendStatus calls them.
var sendStatuses = map[primitive.SendStatus]string{
	primitive.SendOK:                "SEND_OK",
	primitive.SendFlushDiskTimeout:  "FLUSH_DISK_TIMEOUT",
	primitive.SendFlushSlaveTimeout: "FLUSH_SLAVE_TIMEOUT",
	primitive.SendSlaveNotAvailable: "SLAVE_NOT_AVAILABLE",
}

func describeSend(result *primitive.SendResult, err error) map[string]any {
	if err != nil {
		return map[string]any{"error": describeError(err)}
	}
	return map[string]any{
		"status":        sendStatuses[result.Status],
		"msgId":         result.MsgID,
		"offsetMsgId":   result.OffsetMsgID,
		"queue":         result.MessageQueue.QueueId,
		"broker":        result.MessageQueue.BrokerName,
		"queueOffset":   result.QueueOffset,
		"transactionId": result.TransactionID,
		"regionId":      result.RegionID,
	}
}
