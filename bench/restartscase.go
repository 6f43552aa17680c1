package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/segmentio/kafka-go"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
)

const (
	// A pump of the restarts case has its own keys, publishes a batch of their events, and pauses.
	restartKeys  = 40
	restartBatch = 20
	restartPause = 40 * time.Millisecond
	restartPumps = 2
)

// brokerFaults are applied to the three brokers in turn.
var brokerFaults = []struct {
	name string
	do   func(c *kafkatest.Cluster, i int) error
	undo func(c *kafkatest.Cluster, i int) error
	away time.Duration
}{
	{
		"kill -9", func(c *kafkatest.Cluster, i int) error { c.Kill(i); return nil }, (*kafkatest.Cluster).TryStart,
		2 * time.Second,
	},
	{
		"SIGSTOP for 14 s", func(c *kafkatest.Cluster, i int) error { return c.Signal(i, syscall.SIGSTOP) },
		func(c *kafkatest.Cluster, i int) error { return c.Signal(i, syscall.SIGCONT) }, 14 * time.Second,
	},
	{
		"orderly restart", func(c *kafkatest.Cluster, i int) error { c.Stop(i); return nil },
		(*kafkatest.Cluster).TryStart, 0,
	},
}

// restartsCase checks, for each client, how many events are in the log twice, missing, or out of the order of their key
// after brokers were restarted. The clients repeat events until they are acked, as the relay does. All publish at the
// same time, to their own topics in one cluster, so that the same faults affect them.
func restartsCase(ctx context.Context, _ *stack, o options, rep *report) error {
	rep.note("restarts", fmt.Sprintf("three brokers, replication factor 3, min.insync.replicas 2; %d pumps for each "+
		"client send %d events each, every %v. Each fault occurs at each broker, one after the other. The rate is in "+
		"events; the peak does not apply", restartPumps, restartBatch, restartPause))
	cluster, err := kafkatest.Standalone(3)
	if err != nil {
		return err
	}
	defer cluster.Close()
	s := &stack{brokers: cluster.Brokers(), replicas: 3, kafka: &kafka.Client{
		Addr:    kafka.TCP(cluster.Brokers()...),
		Timeout: time.Minute,
	}}
	for turn := 1; turn <= o.live.restarts; turn++ {
		for _, fault := range brokerFaults {
			var runs []*restartRun
			publishing, stop := context.WithCancel(ctx)
			defer stop()
			for _, client := range []string{"", clientFranz, clientFranzPlain} {
				r, err := s.restartRun(publishing, client)
				if err != nil {
					return err
				}
				runs = append(runs, r)
			}
			err := doFault(ctx, cluster, fault.away, fault.do, fault.undo)
			stop()
			for _, r := range runs {
				f, found, endErr := r.end(s)
				if err = errors.Join(err, endErr); err != nil {
					return err
				}
				f.Case, f.Name, f.Turn = "restarts", clientName(fault.name, r.client), turn
				rep.add(f)
				rep.printf("    %s: %d events, %d acked by a repeat, %d in the log twice, %d missing, %d out of order",
					f.Name, f.Events, r.repeated, found.twice, found.missing, found.inverted)
			}
		}
	}
	return nil
}

func doFault(ctx context.Context, c *kafkatest.Cluster, away time.Duration, do,
	undo func(c *kafkatest.Cluster, i int) error,
) error {
	for i := range 3 {
		if err := pause(ctx, 2*time.Second); err != nil {
			return err
		}
		if err := do(c, i); err != nil {
			return err
		}
		waited := pause(ctx, away)
		if err := errors.Join(undo(c, i), waited); err != nil {
			return err
		}
	}
	return pause(ctx, 3*time.Second)
}

// restartRun is the run of one client.
type restartRun struct {
	client, topic string
	drop          func()
	to            closingPublisher
	started       time.Time
	pumps         sync.WaitGroup

	mu       sync.Mutex
	sent     []event.Event // acked, in the order of each key
	repeated int           // events that were not acked the first time
}

func (s *stack) restartRun(ctx context.Context, client string) (*restartRun, error) {
	r := &restartRun{client: client, started: time.Now()}
	var err error
	if r.topic, r.drop, err = s.topic(ctx, 0); err != nil {
		return nil, err
	}
	if r.to, err = newPublisher(job{Brokers: s.brokers, Client: client}, nil); err != nil {
		return nil, err
	}
	for pump := range restartPumps {
		r.pumps.Go(func() { r.pump(ctx, pump) })
	}
	return r, nil
}

// pump publishes until ctx has ended and all its events are acked.
func (r *restartRun) pump(ctx context.Context, pump int) {
	for n := 0; ctx.Err() == nil; n++ {
		events := make([]event.Event, restartBatch)
		for i := range events {
			at := n*restartBatch + i
			events[i] = event.Event{
				ID: event.NewID(), Topic: r.topic, Key: fmt.Sprintf("%d-%d", pump, at%restartKeys), Type: "T",
				Payload: strconv.AppendInt(nil, int64(at), 10),
			}
		}
		for todo, first := events, true; len(todo) > 0; first = false {
			var left []event.Event
			for i, err := range r.to.Publish(context.WithoutCancel(ctx), todo) {
				if err != nil {
					left = append(left, todo[i])
				}
			}
			if todo = left; len(todo) > 0 {
				_ = pause(context.WithoutCancel(ctx), 100*time.Millisecond)
			}
			if first {
				r.mu.Lock()
				r.repeated += len(left)
				r.mu.Unlock()
			}
		}
		r.mu.Lock()
		r.sent = append(r.sent, events...)
		r.mu.Unlock()
		_ = pause(ctx, restartPause)
	}
}

// deviations are the numbers of repeated, missing and inverted events in a log.
type deviations struct{ twice, missing, inverted int }

// end waits for the pumps and compares the log with the acked events.
func (r *restartRun) end(s *stack) (figure, deviations, error) {
	r.pumps.Wait()
	took := since(r.started)
	defer r.drop()
	log, err := s.readLog(r.topic)
	if err = errors.Join(err, r.to.Close()); err != nil {
		return figure{}, deviations{}, err
	}
	n := len(r.sent)
	return figure{Events: n, Seconds: took, Rate: float64(n) / took}, compare(r.sent, log), nil
}

// compare counts repeats, missing events, and first occurrences that are not in the order of their key.
func compare(sent []event.Event, log []loggedRecord) (found deviations) {
	first := map[uuid.UUID]bool{}
	last := map[string]int{}
	for _, r := range log {
		if first[r.id] {
			found.twice++
			continue
		}
		first[r.id] = true
		if before, known := last[r.key]; known && r.number < before {
			found.inverted++
		}
		last[r.key] = max(last[r.key], r.number)
	}
	for i := range sent {
		if !first[sent[i].ID] {
			found.missing++
		}
	}
	return found
}

type loggedRecord struct {
	id     uuid.UUID
	key    string
	number int
}

// readLog reads a topic, partition by partition; leaders may still move.
func (s *stack) readLog(topic string) (all []loggedRecord, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	for p := range partitions {
		for {
			records, err := s.readPartition(ctx, topic, p)
			if err == nil {
				all = append(all, records...)
				break
			}
			if waited := pause(ctx, time.Second); waited != nil {
				return nil, fmt.Errorf("read %s-%d: %w", topic, p, err)
			}
		}
	}
	return all, nil
}

func (s *stack) readPartition(ctx context.Context, topic string, p int) (all []loggedRecord, err error) {
	end, err := s.endOf(ctx, topic, p)
	if err != nil {
		return nil, err
	}
	reader := kafka.NewReader(kafka.ReaderConfig{
		Brokers: s.brokers, Topic: topic, Partition: p,
		MaxWait: 100 * time.Millisecond,
	})
	defer func() { _ = reader.Close() }()
	for next := int64(0); next < end; {
		m, err := reader.ReadMessage(ctx)
		if err != nil {
			return nil, err
		}
		next = m.Offset + 1
		number, err := strconv.Atoi(string(m.Value))
		if err != nil {
			return nil, err
		}
		at := slices.IndexFunc(m.Headers, func(h kafka.Header) bool { return h.Key == event.HeaderID })
		all = append(all, loggedRecord{uuid.MustParse(string(m.Headers[at].Value)), string(m.Key), number})
	}
	return all, nil
}

func (s *stack) endOf(ctx context.Context, topic string, p int) (int64, error) {
	res, err := s.kafka.ListOffsets(ctx, &kafka.ListOffsetsRequest{Topics: map[string][]kafka.OffsetRequest{
		topic: {kafka.LastOffsetOf(p)},
	}})
	if err != nil {
		return 0, err
	}
	for _, one := range res.Topics[topic] {
		return one.LastOffset, one.Error
	}
	return 0, fmt.Errorf("no offset of %s-%d", topic, p)
}
