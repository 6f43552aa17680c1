package consumer

import (
	"context"
	"errors"
	"maps"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/segmentio/kafka-go"
)

// An offset that was decided during a failing commit is sent with the next commit.
func TestCommitAfterFailedCommit(t *testing.T) {
	t.Parallel()
	a, b := &partition{Partition: Partition{"t", 0}}, &partition{Partition: Partition{"t", 1}}
	sent := offsets{}
	c := &committer{every: time.Hour, observer: &Observer{}}
	tried := false
	c.send = func(batch offsets) error {
		if !tried {
			tried = true
			c.decided(a, 7, "of a")
			return errors.New("the broker is away")
		}
		maps.Copy(sent, batch)
		return nil
	}
	c.decided(a, 5, "of a")
	c.decided(b, 3, "")
	want := offsets{a.Partition: {7, "of a"}, b.Partition: {3, ""}}
	if err := c.flushLast(); err != nil || !maps.Equal(sent, want) {
		t.Errorf("committed %v, want %v: %v", sent, want, err)
	}
}

// passes lets time pass in a bubble of synctest.
func passes(d time.Duration) { <-time.After(d) }

// A commit that had no answer is handled after a newer one: the group's offset has gone back. It is committed again,
// while it is quiet and when the partition is given up.
func TestLateCommitIsMadeGood(t *testing.T) {
	t.Parallel()
	for name, leaves := range map[string]bool{"quiet": false, "leaves": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				p := &partition{Partition: Partition{"t", 0}}
				var group, tries atomic.Int64
				c := &committer{every: 200 * time.Millisecond, observer: &Observer{}}
				c.send = func(batch offsets) error {
					if tries.Add(1) == 1 {
						return errors.New("no answer")
					}
					group.Store(batch[p.Partition].next)
					return nil
				}
				ctx, stop := context.WithCancel(t.Context())
				var runs sync.WaitGroup
				runs.Go(func() { c.run(ctx) })
				c.decided(p, 5, "")
				passes(time.Second)
				c.decided(p, 9, "")
				passes(time.Second)
				if n := group.Load(); n != 9 {
					t.Errorf("the group is at %d before the late commit", n)
				}
				group.Store(5) // it is handled
				if !leaves {
					passes(lateEvery)
				} else if err := c.flushLast(); err != nil {
					t.Error(err)
				}
				if n := group.Load(); n != 9 {
					t.Errorf("the group is at %d", n)
				}
				passes(2 * lateFor)
				before := tries.Load()
				passes(lateFor)
				if n := tries.Load(); n != before {
					t.Errorf("%d commits long after the last event", n-before)
				}
				stop()
				runs.Wait()
			})
		})
	}
}

// A commit that the broker refuses as of an old generation ends the generation in this member.
func TestRefusedCommitEndsGeneration(t *testing.T) {
	t.Parallel()
	for _, refused := range []error{kafka.IllegalGeneration, kafka.UnknownMemberId, kafka.FencedInstanceID} {
		var told error
		c := &committer{every: time.Hour, observer: &Observer{}, fenced: func(err error) { told = err }}
		c.send = func(offsets) error { return refused }
		c.decided(&partition{Partition: Partition{"t", 0}}, 5, "")
		if err := c.flush(false); !errors.Is(err, refused) || !errors.Is(told, refused) {
			t.Errorf("%v: fenced was called with %v", refused, told)
		}
	}
}
