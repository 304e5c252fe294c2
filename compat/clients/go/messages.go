package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"math/rand"
	"strconv"
	"strings"

	"github.com/apache/rocketmq-client-go/v2/primitive"
)

// Of a longer body only the length and the SHA-256 are told.
const longestBodyTold = 16 << 10

// A message to send, as driver.py's Outgoing is told.
type outgoing struct {
	Topic         string            `json:"topic"`
	Body          []byte            `json:"body"`
	Size          *int              `json:"size"`
	Tags          string            `json:"tags"`
	Keys          string            `json:"keys"`
	Level         *int              `json:"level"`
	DeliverTimeMs *int64            `json:"deliverTimeMs"`
	DelayTimeMs   *int64            `json:"delayTimeMs"`
	DelayTimeSec  *int64            `json:"delayTimeSec"`
	Properties    map[string]string `json:"properties"`
	Queue         *int              `json:"queue"`
}

// Arbitrary times are properties: the client has no setters for them.
func (wanted *outgoing) message() *primitive.Message {
	body := wanted.Body
	if wanted.Size != nil {
		body = make([]byte, *wanted.Size)
		rand.New(rand.NewSource(int64(len(body)))).Read(body)
	}
	message := primitive.NewMessage(wanted.Topic, body)
	message.WithTag(wanted.Tags)
	if wanted.Keys != "" {
		message.WithKeys(strings.Split(wanted.Keys, " "))
	}
	if wanted.Level != nil {
		message.WithDelayTimeLevel(*wanted.Level)
	}
	for name, value := range map[string]*int64{
		"TIMER_DELIVER_MS": wanted.DeliverTimeMs,
		"TIMER_DELAY_MS":   wanted.DelayTimeMs,
		"TIMER_DELAY_SEC":  wanted.DelayTimeSec,
	} {
		if value != nil {
			message.WithProperty(name, strconv.FormatInt(*value, 10))
		}
	}
	for name, value := range wanted.Properties {
		message.WithProperty(name, value)
	}
	if wanted.Queue != nil {
		message.Queue = &primitive.MessageQueue{Topic: wanted.Topic, QueueId: *wanted.Queue}
	}
	return message
}

func describeAll(messages []*primitive.MessageExt) []map[string]any {
	all := make([]map[string]any, 0, len(messages))
	for _, message := range messages {
		all = append(all, describe(message))
	}
	return all
}

func describe(message *primitive.MessageExt) map[string]any {
	digest := sha256.Sum256(message.Body)
	told := map[string]any{
		"msgId":           message.MsgId,
		"offsetMsgId":     message.OffsetMsgId,
		"topic":           message.Topic,
		"queue":           message.Queue.QueueId,
		"queueOffset":     message.QueueOffset,
		"commitLogOffset": message.CommitLogOffset,
		"tags":            orNull(message.GetTags()),
		"keys":            orNull(message.GetKeys()),
		"flag":            message.Flag,
		"sysFlag":         message.SysFlag,
		"reconsumeTimes":  message.ReconsumeTimes,
		"bornMs":          message.BornTimestamp,
		"storedMs":        message.StoreTimestamp,
		"bornHost":        message.BornHost,
		"storeHost":       message.StoreHost,
		"storeSize":       message.StoreSize,
		"bodyLength":      len(message.Body),
		"bodySha256":      hex.EncodeToString(digest[:]),
		"properties":      message.GetProperties(),
	}
	if len(message.Body) <= longestBodyTold {
		told["body"] = bytes.Clone(message.Body)
	}
	return told
}

func orNull(text string) any {
	if text == "" {
		return nil
	}
	return text
}
