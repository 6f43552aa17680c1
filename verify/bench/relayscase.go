package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/effectonce/effectonce/relay/operator"
)

const (
	// longLease keeps the lanes with relays that are stopped (SIGSTOP) while the outbox is filled.
	longLease = 2 * time.Minute
	// warmEvents is the number of events per relay before the measurement, so that connections, plans and heaps are
	// warm.
	warmEvents = 40_000
)

// relaysCase compares two and four relay processes, and one that reads the WAL, with one that polls.
func relaysCase(ctx context.Context, s *stack, o options, rep *report) error {
	rep.note("relays", fmt.Sprintf("%d events, drained by one, two or four relays that already share the lanes, and "+
		"by one that reads the WAL", o.events))
	payload := payloads(distinct)
	kinds := []struct {
		name   string
		relays int
		wal    bool
	}{{"one relay", 1, false}, {"two relays", 2, false}, {"four relays", 4, false}, {"one relay, WAL", 1, true}}
	for turn := range o.repeats + 1 {
		for _, k := range kinds {
			var f figure
			err := s.withWAL(ctx, k.wal, func() (err error) {
				f, err = s.drainShared(ctx, o, k.relays, k.wal, payload)
				return err
			})
			if err != nil {
				return fmt.Errorf("%s: %w", k.name, err)
			}
			f.Case, f.Name, f.Turn = "relays", k.name, turn
			rep.add(f)
		}
	}
	rep.ratio("relays", kinds[1].name, kinds[0].name, 0.97)
	rep.ratio("relays", kinds[2].name, kinds[0].name, 0.95)
	rep.ratio("relays", kinds[3].name, kinds[0].name, 0.6)
	return nil
}

// withWAL calls do between the set-up of a slot and its removal, if wal.
func (s *stack) withWAL(ctx context.Context, wal bool, do func() error) error {
	if !wal {
		return do()
	}
	if _, err := operator.SetUpWAL(ctx, s.db, "public"); err != nil {
		return err
	}
	err := do()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	for {
		_, dropped := operator.DropWAL(ctx, s.db, "public")
		if !errors.Is(dropped, operator.ErrSlotInUse) || pause(ctx, 100*time.Millisecond) != nil {
			return errors.Join(err, dropped)
		}
	}
}

// drainShared starts n relays and, when they have shared the lanes and are warm, pauses them (SIGSTOP) while the outbox
// is filled. The time is from SIGCONT to the last settle. With wal, one relay reads the events from the WAL.
func (s *stack) drainShared(ctx context.Context, o options, n int, wal bool, payload [][]byte) (f figure, err error) {
	topic, drop, err := s.topic(ctx)
	if err != nil {
		return f, err
	}
	defer drop()
	if err := s.exec(ctx, queryEmptyOutbox); err != nil {
		return f, err
	}
	relays, stop, err := s.background(n, job{Topic: topic, Pumps: o.pumps, Lease: longLease, WAL: wal})
	if err != nil {
		return f, err
	}
	defer stop()
	if err := s.awaitRelays(ctx, n, wal); err != nil {
		return f, err
	}
	events := o.events
	warm := n * min(warmEvents, events/4)
	if err := s.warm(ctx, topic, warm, payload); err != nil {
		return f, err
	}
	if err := signalAll(relays, syscall.SIGSTOP); err != nil {
		return f, err
	}
	filling, cancel := context.WithTimeout(ctx, longLease/2)
	defer cancel()
	if err := s.fill(filling, topic, events, payload); err != nil {
		return f, err
	}
	written, err := s.wal(ctx)
	if err != nil {
		return f, err
	}
	own := -cpuOfAll(relays)
	before, began := serverCPU(), time.Now()
	if err := signalAll(relays, syscall.SIGCONT); err != nil {
		return f, err
	}
	if err := s.awaitPublished(ctx, topic, warm+events); err != nil {
		return f, err
	}
	own += cpuOfAll(relays)
	var last time.Time
	settled := 0
	for _, b := range relays {
		a, err := b.end()
		if err != nil {
			return f, err
		}
		if a.LastSettle.After(last) {
			last = a.LastSettle
		}
		settled += a.Settled
		f.PeakKiB = max(f.PeakKiB, a.PeakKiB)
	}
	if settled != warm+events {
		return f, fmt.Errorf("the relays settled %d of %d events", settled, warm+events)
	}
	after, err := s.wal(ctx)
	if err != nil {
		return f, err
	}
	used, per := serverCPU().minus(before), 1e6/float64(events)
	f.Events, f.Seconds, f.WALBytes = events, last.Sub(began).Seconds(), float64(after-written)/float64(events)
	f.Rate, f.CPU = float64(events)/f.Seconds, own*per
	f.PostgresCPU, f.KafkaCPU = used.postgres*per, used.kafka*per
	return f, s.left(ctx)
}

// warm lets the relays drain n events.
func (s *stack) warm(ctx context.Context, topic string, n int, payload [][]byte) error {
	// Not by fill, which truncates the tables that the relays use.
	if err := s.append(ctx, topic, n, payload); err != nil {
		return err
	}
	if err := s.awaitPublished(ctx, topic, n); err != nil {
		return err
	}
	if err := s.left(ctx); err != nil {
		return err
	}
	return pause(ctx, time.Second) // the floors rise: a process must not be paused within a transaction
}

func cpuOfAll(relays []*background) (seconds float64) {
	for _, b := range relays {
		self, _ := cpuOf(b.process.PID())
		seconds += self
	}
	return seconds
}

func signalAll(relays []*background, sig os.Signal) error {
	for _, b := range relays {
		if err := b.process.Signal(sig); err != nil {
			return err
		}
	}
	return nil
}

// awaitPublished waits until a topic has want records.
func (s *stack) awaitPublished(ctx context.Context, topic string, want int) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	for {
		got, err := s.records(ctx, topic)
		if err != nil || got >= want {
			return err
		}
		if err := pause(ctx, 50*time.Millisecond); err != nil {
			return fmt.Errorf("%d of %d events published: %w", got, want, err)
		}
	}
}
