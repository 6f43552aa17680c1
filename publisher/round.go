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
	// joinBelow is the size up to which a batch waits for others to share a request. Larger batches are faster in
	// parallel requests of their own.
	joinBelow = 64 << 10
	// joinMost bounds the size of a request of joined batches.
	joinMost = 1 << 20
	// tardy is the time after which a partition counts as slow. Its batches are sent alone, because a broker answers a
	// request only when all its partitions are replicated.
	tardy = time.Second
)

// round joins the batches of one Publish call for the partitions of one broker into one request. Most of the cost, in
// the broker and the network, is per request, and a call with few events has some for many partitions.
//
// A batch waits until no worker of the call can add another: each worker waits for an answer, rests, or has ended.
type round struct {
	k *Kafka

	mu      sync.Mutex
	busy    int // workers that may still post a batch
	waiting []*post
}

// post is a batch on its way.
type post struct {
	to     *partition
	b      *batch
	answer chan answer
}

// answer is a broker's answer for a batch, or the error of the request.
type answer struct {
	said produce.ResponsePartition
	err  error
}

// rest marks that the worker waits for something other than an answer. Batches do not wait for it until resume.
func (r *round) rest() {
	r.mu.Lock()
	r.busy--
	due := r.due()
	r.mu.Unlock()
	r.send(due)
}

// resume ends the rest.
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

// due removes the waiting batches and returns them as requests, once no worker can add another.
func (r *round) due() (requests [][]*post) {
	if r.busy > 0 || len(r.waiting) == 0 {
		return nil
	}
	at, size := map[int32]int{}, map[int32]int{} // by leader: index of the request with space left, and its size
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
			r.busy += len(posts) // before the first worker can post its next batch
			r.mu.Unlock()
			for i, p := range posts {
				p.answer <- answers[i]
			}
		}()
	}
}

// answers sends posts in one request, or each by itself if they have several leaders after all.
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

// roundTrip sends posts as one request. The broker gets half of the time-out for replication, as in kafka-go's client.
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
		return nil, fmt.Errorf("publisher: %w", unsaid(err))
	}
	said, _ := res.(*produce.Response) // nil without acks
	if said != nil && said.ThrottleTimeMs > 0 {
		pause := time.Duration(said.ThrottleTimeMs) * time.Millisecond
		if k.wire.throttle(posts[0].to.leader.Load(), pause) {
			k.cfg.Logger.Warn("Kafka throttles this client, by a quota of its user or client id: publishing is as "+
				"slow as that allows", "client_id", k.cfg.ClientID, "pause", pause)
		}
	}
	return said, nil
}

// answerOf returns a response's answer for a partition.
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

// errorOf returns the broker's error; nil means that the batch was written.
func errorOf(said *produce.ResponsePartition) error {
	switch {
	case said.ErrorCode == 0:
		return nil
	case said.ErrorMessage == "":
		return kafka.Error(said.ErrorCode)
	}
	return fmt.Errorf("%w: %s", kafka.Error(said.ErrorCode), said.ErrorMessage)
}
