package consumer

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/google/uuid"
	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
)

// logID returns the id that Kafka gave to a topic when it was created, and whether the brokers answer a fetch that
// names the topic by it. A topic that is deleted and made again has another id. It is zero if the brokers do not tell:
// those before Kafka 2.8, and some that only speak its protocol.
func (c *client) logID(ctx context.Context, cfg *Config, topic string) (id uuid.UUID, fetched bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*netTimeout)
	defer cancel()
	res, err := c.transport.RoundTrip(ctx, c.addr, &topicIDRequest{clientID: cfg.ClientID, topic: topic})
	if err != nil {
		return uuid.Nil, false, fmt.Errorf("the id of topic %s: %w", topic, err)
	}
	answer := res.(*topicIDResponse)
	if answer.errorCode != 0 {
		return uuid.Nil, false, fmt.Errorf("the id of topic %s: %w", topic, kafka.Error(answer.errorCode))
	}
	return answer.id, answer.fetched && answer.id != uuid.Nil, nil
}

// topicIDRequest is a Metadata request for one topic. kafka-go's own stops at version 8, which has no ids, and is
// answered from a cache. kafka-go also hides which versions the broker knows beyond its own: they are asked for first.
type topicIDRequest struct{ clientID, topic string }

type topicIDResponse struct {
	errorCode int16
	id        uuid.UUID
	fetched   bool // the broker knows the version of Fetch that names topics by their ids
}

// topicIDsVersion is the first version of the Metadata API that answers with ids.
const topicIDsVersion = 10

// maxTopicIDBytes limits the answers: a topic may have many partitions, a cluster many brokers.
const maxTopicIDBytes = 64 << 20

var _ protocol.RawExchanger = (*topicIDRequest)(nil)

// ApiKey implements protocol.Message.
func (r *topicIDRequest) ApiKey() protocol.ApiKey { return protocol.Metadata }

// ApiKey implements protocol.Message.
func (r *topicIDResponse) ApiKey() protocol.ApiKey { return protocol.Metadata }

// Required selects the raw exchange.
func (r *topicIDRequest) Required(map[protocol.ApiKey]int16) bool { return true }

// RawExchange sends both requests and reads their responses, the second one up to the topic's id.
func (r *topicIDRequest) RawExchange(rw io.ReadWriter) (protocol.Message, error) {
	newest, err := r.versions(rw)
	if err != nil {
		return nil, err
	}
	if newest[protocol.Metadata] < topicIDsVersion {
		return &topicIDResponse{}, nil
	}
	b := tags(requestHead(protocol.Metadata, topicIDsVersion, r.clientID), true)
	b = length(b, 1, true)
	b = append(b, make([]byte, 16)...) // no id: the topic is asked for by name
	b = append(length(b, len(r.topic), true), r.topic...)
	b = tags(b, true)
	b = append(b, 0, 0, 0) // create no topic, and leave out what the client may do
	answer, err := exchange(rw, tags(b, true), maxTopicIDBytes)
	if err != nil {
		return nil, err
	}
	res, err := decodeTopicID(answer)
	if err != nil {
		return nil, err
	}
	res.fetched = newest[protocol.Fetch] >= logFetchVersion
	return res, nil
}

// versions returns the newest version of each request that the broker knows.
func (r *topicIDRequest) versions(rw io.ReadWriter) (map[protocol.ApiKey]int16, error) {
	answer, err := exchange(rw, requestHead(protocol.ApiVersions, 0, r.clientID), maxTopicIDBytes)
	if err != nil {
		return nil, err
	}
	a := reader{b: answer}
	if code := a.int16(); code != 0 {
		return nil, fmt.Errorf("which requests the broker knows: %w", kafka.Error(code))
	}
	newest := map[protocol.ApiKey]int16{}
	for n := a.int32(); n > 0 && !a.short; n-- {
		key := protocol.ApiKey(a.int16())
		a.skip(2) // the oldest version
		newest[key] = a.int16()
	}
	if a.short {
		return nil, errors.New("an answer to ApiVersions that ends too early")
	}
	return newest, nil
}

func decodeTopicID(b []byte) (*topicIDResponse, error) {
	r := reader{b: b, flexible: true}
	r.tag(0)
	r.skip(4) // throttle time
	for n := r.length(); n > 0 && !r.short; n-- {
		r.skip(4)                  // the broker's id
		r.skip(max(0, r.length())) // host
		r.skip(4)                  // port
		r.skip(max(0, r.length())) // rack
		r.tag(0)
	}
	r.skip(max(0, r.length())) // cluster id
	r.skip(4)                  // controller
	if n := r.length(); n != 1 && !r.short {
		return nil, fmt.Errorf("an answer with %d topics instead of one", n)
	}
	res := &topicIDResponse{errorCode: r.int16()}
	r.skip(max(0, r.length())) // name
	copy(res.id[:], r.take(16))
	if r.short {
		return nil, errors.New("an answer that ends too early")
	}
	return res, nil
}
