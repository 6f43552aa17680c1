package publisher

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/metadata"
	"github.com/segmentio/kafka-go/protocol/produce"
	"github.com/segmentio/kafka-go/protocol/rawproduce"
)

// fake is a transport whose answers a test sets.
type fake struct {
	partitions int
	cluster    string
	produce    func(context.Context, request) *produce.ResponsePartition // nil: the request fails with err
	err        error
	throttle   int32 // of every answer, in milliseconds

	mu        sync.Mutex
	meta      kafka.Error // the topic's error in metadata
	metaErr   error
	refreshes int
}

// request is one partition's part of a produce request.
type request struct {
	topic     string
	partition int
	message   *rawproduce.Request
	records   protocol.RawRecordSet
	joined    int // number of partitions in the request
}

// values returns the values of the request's records, decoded by kafka-go.
func (r request) values() []string {
	var rs protocol.RecordSet
	raw := r.records.Reader.(*bytes.Reader)
	if _, err := rs.ReadFrom(raw); err != nil {
		panic(err)
	}
	_, _ = raw.Seek(0, 0)
	var out []string
	for {
		rec, err := rs.Records.ReadRecord()
		if err != nil {
			return out
		}
		b, err := protocol.ReadAll(rec.Value)
		if err != nil {
			panic(err)
		}
		out = append(out, string(b))
	}
}

func (f *fake) CloseIdleConnections() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refreshes++
}

func (f *fake) RoundTrip(ctx context.Context, _ net.Addr, req kafka.Request) (kafka.Response, error) {
	switch m := req.(type) {
	case *metadata.Request:
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.metaErr != nil {
			return nil, f.metaErr
		}
		res := &metadata.Response{ClusterID: f.cluster}
		for _, name := range m.TopicNames {
			t := metadata.ResponseTopic{Name: name, ErrorCode: int16(f.meta)}
			for i := range f.partitions {
				t.Partitions = append(t.Partitions, metadata.ResponsePartition{PartitionIndex: int32(i)})
			}
			res.Topics = append(res.Topics, t)
		}
		return res, nil
	case *rawproduce.Request:
		if m.Acks != -1 {
			return nil, errors.New("acks are not all")
		}
		res, joined := &produce.Response{ThrottleTimeMs: f.throttle}, 0
		for i := range m.Topics {
			joined += len(m.Topics[i].Partitions)
		}
		for _, t := range m.Topics {
			answers := produce.ResponseTopic{Topic: t.Topic}
			for _, p := range t.Partitions {
				answered := f.produce(ctx, request{t.Topic, int(p.Partition), m, p.RecordSet, joined})
				if answered == nil {
					return nil, f.err
				}
				answered.Partition = p.Partition
				answers.Partitions = append(answers.Partitions, *answered)
			}
			res.Topics = append(res.Topics, answers)
		}
		return res, nil
	}
	return nil, fmt.Errorf("unexpected %T", req)
}
