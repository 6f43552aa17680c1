package main

import (
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// TestFigureBetween: records that are there at the first moment do not count.
func TestFigureBetween(t *testing.T) {
	t.Parallel()
	at := time.Now()
	first := arrival{at, 1000, 2, usage{postgres: 5, kafka: 7}}
	last := arrival{at.Add(2 * time.Second), 21_000, 3, usage{postgres: 5.5, kafka: 7.2}}
	f := figureBetween(first, last)
	if f.Events != 20_000 || f.Rate != 10_000 {
		t.Errorf("%d events at %v/s", f.Events, f.Rate)
	}
	if f.CPU != 50 || f.PostgresCPU != 25 || f.KafkaCPU < 9.99 || f.KafkaCPU > 10.01 {
		t.Errorf("CPU an event: own %v, Postgres %v, Kafka %v", f.CPU, f.PostgresCPU, f.KafkaCPU)
	}
}

// TestCounting: refused messages do not count, and the end is signalled once, even if a repeat exceeds the count.
func TestCounting(t *testing.T) {
	t.Parallel()
	to := &failingPublisher{}
	c := &counting{Publisher: to, want: 3, all: make(chan struct{})}
	ended := func() bool {
		select {
		case <-c.all:
			return true
		default:
			return false
		}
	}
	two := []*message.Message{message.NewMessage("a", nil), message.NewMessage("b", nil)}
	if err := c.Publish("t", two...); err != nil || ended() {
		t.Fatalf("after two of three: %v, ended: %v", err, ended())
	}
	to.err = errors.New("no")
	if err := c.Publish("t", two...); !errors.Is(err, to.err) || ended() {
		t.Fatalf("after a refusal: %v, ended: %v", err, ended())
	}
	to.err = nil
	for range 2 {
		if err := c.Publish("t", two...); err != nil || !ended() {
			t.Fatalf("after four of three: %v, ended: %v", err, ended())
		}
	}
}

type failingPublisher struct{ err error }

func (r *failingPublisher) Publish(string, ...*message.Message) error { return r.err }
func (r *failingPublisher) Close() error                              { return nil }
