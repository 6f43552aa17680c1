package publisher

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/produce"
	"github.com/segmentio/kafka-go/protocol/rawproduce"
)

const (
	// joinBelow is up to which size a batch waits for others to share a request with. A larger one is a request's
	// worth, and several of them are faster side by side.
	joinBelow = 64 << 10
	// joinMost bounds the batches of a request that are joined.
	joinMost = 1 << 20
	// tardy is from when on a partition's answers are late: its batches go alone, for a broker answers a request when
	// its last partition has its replicas.
	tardy = time.Second
)

// round joins what one Publish call has for partitions of one broker at a time into one request: a broker's and a
// network's work is mostly by the request, and a call with few events has some for many partitions.
//
// A batch waits until no worker of the call may come with another one: each of them waits for an answer too, or for
// something else (rest), or has ended.
type round struct {
	k *Kafka

	mu      sync.Mutex
	busy    int // workers that may come with a batch
	waiting []*post
}

// post is a batch on its way.
type post struct {
	to     *partition
	b      *batch
	answer chan answer
}

// answer is what a broker says of a batch, or why it said nothing.
type answer struct {
	said produce.ResponsePartition
	err  error
}

// rest: the worker waits for something else, and nothing waits for it meanwhile.
func (r *round) rest() {
	r.mu.Lock()
	r.busy--
	due := r.due()
	r.mu.Unlock()
	r.send(due)
}

// resume ends a rest.
func (r *round) resume() {
	r.mu.Lock()
	r.busy++
	r.mu.Unlock()
}

// post sends a batch and returns the answer. ctx must not end before: see Kafka.attempt.
func (r *round) post(ctx context.Context, to *partition, b *batch) (*produce.ResponsePartition, error) {
	p, started := &post{to, b, make(chan answer, 1)}, time.Now()
	alone := len(b.frame) > joinBelow || to.leader.Load() < 0 || to.alone.Load()
	var a answer
	if alone {
		r.rest()
		a = r.k.answers(ctx, []*post{p})[0]
		r.resume()
	} else {
		r.mu.Lock()
		r.waiting = append(r.waiting, p)
		r.busy--
		due := r.due()
		r.mu.Unlock()
		r.send(due)
		started = time.Now()
		a = <-p.answer
	}
	if bad := a.err != nil || a.said.ErrorCode != 0 || time.Since(started) > tardy; bad || alone {
		to.alone.Store(bad)
	}
	return &a.said, a.err
}

// due takes what waits, as requests, when nothing else can come.
func (r *round) due() (requests [][]*post) {
	if r.busy > 0 || len(r.waiting) == 0 {
		return nil
	}
	at, size := map[int32]int{}, map[int32]int{} // by leader: the request that has room, and its bytes
	for _, p := range r.waiting {
		leader := p.to.leader.Load()
		if i, ok := at[leader]; ok && size[leader]+len(p.b.frame) <= joinMost {
			requests[i] = append(requests[i], p)
		} else {
			at[leader], size[leader] = len(requests), 0
			requests = append(requests, []*post{p})
		}
		size[leader] += len(p.b.frame)
	}
	r.waiting = nil
	return requests
}

func (r *round) send(requests [][]*post) {
	for _, posts := range requests {
		go func() {
			answers := r.k.answers(context.Background(), posts)
			r.mu.Lock()
			r.busy += len(posts) // before the first of them is back with another batch
			r.mu.Unlock()
			for i, p := range posts {
				p.answer <- answers[i]
			}
		}()
	}
}

// answers sends posts in one request, and each by itself where they turn out to have several leaders.
func (k *Kafka) answers(ctx context.Context, posts []*post) []answer {
	out := make([]answer, len(posts))
	res, err := k.roundTrip(ctx, posts)
	var unsent *rawproduce.Error
	if len(posts) > 1 && errors.As(err, &unsent) {
		var wg sync.WaitGroup
		for i := range posts {
			wg.Go(func() { out[i] = k.answers(ctx, posts[i:i+1])[0] })
		}
		wg.Wait()
		return out
	}
	for i, p := range posts {
		out[i] = answer{err: err}
		if err == nil && res != nil {
			out[i] = answerOf(res, p.to)
		}
	}
	return out
}

// roundTrip makes a request of posts. The time that the broker has for its replicas is half of ours, as kafka-go's
// client gives it.
func (k *Kafka) roundTrip(ctx context.Context, posts []*post) (*produce.Response, error) {
	req := &rawproduce.Request{Acks: int16(kafka.RequireAll), Timeout: int32((k.cfg.Timeout / 2).Milliseconds())}
	at := map[string]int{}
	for _, p := range posts {
		name := p.to.topic.name
		i, ok := at[name]
		if !ok {
			i = len(req.Topics)
			at[name] = i
			req.Topics = append(req.Topics, rawproduce.RequestTopic{Topic: name})
		}
		req.Topics[i].Partitions = append(req.Topics[i].Partitions, rawproduce.RequestPartition{
			Partition: int32(p.to.id), RecordSet: protocol.RawRecordSet{Reader: bytes.NewReader(p.b.frame)},
		})
	}
	ctx, cancel := context.WithTimeout(ctx, k.cfg.Timeout)
	defer cancel()
	res, err := k.wire.RoundTrip(ctx, k.client.Addr, req)
	if err != nil {
		return nil, fmt.Errorf("publisher: %w", err)
	}
	said, _ := res.(*produce.Response) // nil without acks
	return said, nil
}

// answerOf finds what a response says of a partition.
func answerOf(res *produce.Response, to *partition) answer {
	for i := range res.Topics {
		if t := &res.Topics[i]; t.Topic == to.topic.name {
			for j := range t.Partitions {
				if t.Partitions[j].Partition == int32(to.id) {
					return answer{said: t.Partitions[j]}
				}
			}
		}
	}
	return answer{err: fmt.Errorf("publisher: the broker did not answer for %s-%d", to.topic.name, to.id)}
}

// refusalOf is the broker's error, nil when it took the batch.
func refusalOf(said *produce.ResponsePartition) error {
	switch {
	case said.ErrorCode == 0:
		return nil
	case said.ErrorMessage == "":
		return kafka.Error(said.ErrorCode)
	}
	return fmt.Errorf("%w: %s", kafka.Error(said.ErrorCode), said.ErrorMessage)
}
