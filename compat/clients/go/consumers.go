package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

type consumeRequest struct {
	Subscriptions     map[string]string `json:"subscriptions"`
	SQL               bool              `json:"sql"`
	Orderly           bool              `json:"orderly"`
	From              string            `json:"from"`
	FailFirst         int32             `json:"failFirst"`
	RetryLevel        int               `json:"retryLevel"`
	MaxReconsumeTimes int32             `json:"maxReconsumeTimes"`
	Broadcast         bool              `json:"broadcast"`
	Reply             *[]byte           `json:"reply"`
}

// Queue and topic are those of a message, too, and are there.
type pullRequest struct {
	Expression string `json:"expression"`
	Offset     int64  `json:"offset"`
	Limit      int    `json:"limit"`
}

func consumerOptions(asked *request) []consumer.Option {
	options := []consumer.Option{
		consumer.WithNameServer(primitive.NamesrvAddr{asked.Namesrv}),
		consumer.WithInstance(asked.Instance),
		consumer.WithGroupName(asked.Group),
		consumer.WithNamespace(asked.Namespace),
		consumer.WithCredentials(asked.credentials()),
		consumer.WithVIPChannel(asked.VipChannel),
	}
	if asked.From == "CONSUME_FROM_LAST_OFFSET" {
		options = append(options, consumer.WithConsumeFromWhere(consumer.ConsumeFromLastOffset))
	} else {
		options = append(options, consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset))
	}
	if asked.Broadcast {
		options = append(options, consumer.WithConsumerModel(consumer.BroadCasting))
	}
	if asked.Trace {
		options = append(options, consumer.WithTrace(traceConfig(asked)))
	}
	return options
}

func selector(asked *request, expression string) consumer.MessageSelector {
	if asked.SQL {
		return consumer.MessageSelector{Type: consumer.SQL92, Expression: expression}
	}
	return consumer.MessageSelector{Type: consumer.TAG, Expression: expression}
}

func (d *driver) startConsumer(asked *request) error {
	options := append(
		consumerOptions(asked),
		consumer.WithConsumerOrder(asked.Orderly),
		consumer.WithMaxReconsumeTimes(asked.MaxReconsumeTimes),
	)
	started, err := rocketmq.NewPushConsumer(options...)
	if err != nil {
		return err
	}
	receive := d.receiver(asked)
	if asked.Reply != nil {
		replier := *asked
		replier.Instance += "-replies"
		if err := d.startProducer(&replier); err != nil {
			return err
		}
		receive = d.replying(asked, receive)
	}
	for topic, expression := range asked.Subscriptions {
		if err := started.Subscribe(topic, selector(asked, expression), receive); err != nil {
			return err
		}
	}
	if err := started.Start(); err != nil {
		return err
	}
	d.lock.Lock()
	defer d.lock.Unlock()
	d.consumers[asked.Name] = started
	return nil
}

type receiver = func(context.Context, ...*primitive.MessageExt) (consumer.ConsumeResult, error)

// Tells what came in; each message is accepted from its "failFirst"th retry.
func (d *driver) receiver(asked *request) receiver {
	return func(
		ctx context.Context, messages ...*primitive.MessageExt,
	) (consumer.ConsumeResult, error) {
		now := time.Now().UnixMilli()
		isAccepted := true
		for _, message := range messages {
			isAccepted = isAccepted && message.ReconsumeTimes >= asked.FailFirst
			told := describe(message)
			told["receivedMs"] = now
			d.tell(map[string]any{"consumer": asked.Name, "message": told})
		}
		if isAccepted {
			return consumer.ConsumeSuccess, nil
		}
		if asked.Orderly {
			return consumer.SuspendCurrentQueueAMoment, nil
		}
		if retry, ok := primitive.GetConcurrentlyCtx(ctx); ok {
			retry.DelayLevelWhenNextConsume = asked.RetryLevel
		}
		return consumer.ConsumeRetryLater, nil
	}
}

// Answers each message with the same reply.
func (d *driver) replying(asked *request, receive receiver) receiver {
	return func(
		ctx context.Context, messages ...*primitive.MessageExt,
	) (consumer.ConsumeResult, error) {
		for _, message := range messages {
			reply, err := consumer.CreateReplyMessage(message, nil)
			if err != nil {
				return consumer.ConsumeRetryLater, err
			}
			reply.Body = *asked.Reply // the function above takes a body for properties
			if _, err := d.producer(asked.Name).SendSync(ctx, reply); err != nil {
				return consumer.ConsumeRetryLater, err
			}
		}
		return receive(ctx, messages...)
	}
}

// A pull consumer, which starts when it is told its topic.
type puller struct {
	asked   request
	lock    sync.Mutex
	started rocketmq.PullConsumer
}

func (d *driver) startPuller(asked *request) error {
	made := &puller{asked: *asked}
	if asked.Topic != "" {
		if _, err := made.of(asked.Topic, asked.Expression); err != nil {
			return err
		}
	}
	d.lock.Lock()
	defer d.lock.Unlock()
	d.pullers[asked.Name] = made
	return nil
}

func (d *driver) puller(name string) *puller {
	d.lock.Lock()
	defer d.lock.Unlock()
	return d.pullers[name]
}

// The consumer, subscribed to one topic with an expression.
func (p *puller) of(topic string, expression string) (rocketmq.PullConsumer, error) {
	p.lock.Lock()
	defer p.lock.Unlock()
	if p.started != nil {
		return p.started, p.started.Subscribe(topic, selector(&p.asked, expression))
	}
	options := append(consumerOptions(&p.asked), consumer.WithPullBatchSize(32))
	made, err := rocketmq.NewPullConsumer(options...)
	if err != nil {
		return nil, err
	}
	if err := made.Subscribe(topic, selector(&p.asked, expression)); err != nil {
		return nil, err
	}
	if err := made.Start(); err != nil {
		return nil, err
	}
	p.started = made
	return made, nil
}

func (p *puller) shutdown() error {
	if p.started == nil {
		return nil
	}
	return p.started.Shutdown()
}

// What Java's PullStatus calls them.
var pullStatuses = map[primitive.PullStatus]string{
	primitive.PullFound:         "FOUND",
	primitive.PullNoNewMsg:      "NO_NEW_MSG",
	primitive.PullNoMsgMatched:  "NO_MATCHED_MSG",
	primitive.PullOffsetIllegal: "OFFSET_ILLEGAL",
}

func (d *driver) pull(asked *request) (any, error) {
	puller, err := d.puller(asked.Name).of(asked.Topic, asked.Expression)
	if err != nil {
		return nil, err
	}
	queue := &primitive.MessageQueue{
		Topic: asked.Topic, BrokerName: "broker-a", QueueId: *asked.Queue,
	}
	result, err := puller.PullFrom(context.Background(), queue, asked.Offset, asked.Limit)
	if err != nil {
		return nil, err
	}
	status, known := pullStatuses[result.Status]
	if !known {
		return nil, fmt.Errorf("no such pull status: %d", result.Status)
	}
	return map[string]any{
		"status":     status,
		"nextOffset": result.NextBeginOffset,
		"minOffset":  result.MinOffset,
		"maxOffset":  result.MaxOffset,
		"messages":   describeAll(result.GetMessageExts()),
	}, nil
}

func (d *driver) poll(asked *request) (any, error) {
	started := d.puller(asked.Name).started
	timeout := time.Duration(asked.TimeoutMs) * time.Millisecond
	found, err := started.Poll(context.Background(), timeout)
	if errors.Is(err, consumer.ErrNoNewMsg) {
		return []any{}, nil
	}
	if err != nil {
		return nil, err
	}
	told := describeAll(found.GetMsgList())
	started.ACK(context.Background(), found, consumer.ConsumeSuccess)
	return told, nil
}
