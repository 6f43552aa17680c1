package reads

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	inboxoperator "github.com/effectonce/effectonce/inbox/operator"
	"github.com/effectonce/effectonce/relay"
)

// TestShared: ten who look at once are shown one read.
func TestShared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		reads := 0
		s := &Shared[int]{every: 5 * time.Second, timeout: time.Second, read: func(ctx context.Context) (int, error) {
			reads++
			select {
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
			}
			return reads, nil
		}}
		for range 10 {
			go func() { _, _, _ = s.Get(t.Context(), time.Second) }()
		}
		if v, at, err := s.Get(t.Context(), time.Second); v != 1 || at.IsZero() || err != nil {
			t.Errorf("%d of %v, %v", v, at, err)
		}
		synctest.Wait()
		if v, _, _ := s.Get(t.Context(), time.Second); v != 1 || reads != 1 {
			t.Errorf("%d, and %d reads", v, reads)
		}
		s.Changed()
		if v, _, _ := s.Get(t.Context(), time.Second); v != 2 {
			t.Errorf("after a change: %d", v)
		}
		ctx, cancel := context.WithCancel(t.Context())
		s.Changed()
		cancel() // one Viewer's end is not the read's
		_, _, _ = s.Get(ctx, time.Second)
		synctest.Wait()
		<-time.After(200 * time.Millisecond)
		if v, _, _ := s.Get(t.Context(), 0); v != 3 {
			t.Errorf("after a Viewer has gone: %d", v)
		}
	})
}

// TestSharedUnknown: who has waited in vain is told so: of what was never read, of what is older than it may be, and of
// what has changed since. The read's own time ends a moment later than its viewers'.
func TestSharedUnknown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		hangs, refused := true, errors.New("refused")
		s := &Shared[int]{every: 5 * time.Second, timeout: time.Second, read: func(ctx context.Context) (int, error) {
			if !hangs {
				return 7, nil
			}
			<-ctx.Done()
			<-time.After(time.Millisecond) // the connection is closed
			return 0, refused
		}}
		unknown := func(when string, wait time.Duration, since time.Time) {
			t.Helper()
			_, _, err := s.Get(t.Context(), wait)
			told, ok := errors.AsType[*UnknownError](err)
			if !ok || !told.Since.Equal(since) || Away(err) != told.Error() {
				t.Errorf("%s: %v, want one since %v", when, err, since)
			}
		}
		unknown("never read", time.Second, time.Time{})
		<-time.After(time.Second)
		if _, _, err := s.Get(t.Context(), 0); !errors.Is(err, refused) {
			t.Errorf("a read that failed: %v", err)
		}
		hangs = false
		s.Changed()
		_, at, err := s.Get(t.Context(), time.Second)
		if err != nil {
			t.Fatal(err)
		}
		hangs = true
		s.Changed()
		unknown("changed since", time.Millisecond, at)
		if v, _, err := s.Get(t.Context(), 0); v != 7 || err != nil {
			t.Errorf("as of a moment ago: %d, %v", v, err)
		}
		<-time.After(2 * time.Second)
		hangs = false
		s.Changed()
		if _, at, err = s.Get(t.Context(), time.Second); err != nil {
			t.Fatal(err)
		}
		hangs = true
		<-time.After(time.Hour)
		unknown("old", 0, at)
		synctest.Wait()
		<-time.After(2 * time.Second)
	})
}

// TestStateChanged: what builds on a state that was changed while it was read has it all the same.
func TestStateChanged(t *testing.T) {
	t.Parallel()
	var d Database
	d.State = &Shared[State]{every: time.Hour, timeout: time.Minute}
	d.State.read = func(context.Context) (State, error) {
		d.State.Changed()
		return State{HasInbox: true}, nil
	}
	if _, _, err := d.State.Get(t.Context(), time.Minute); err == nil {
		t.Error("a viewer is not told of the change")
	}
	if st, err := d.state(t.Context()); err != nil || !st.HasInbox {
		t.Errorf("%+v, %v", st, err)
	}
}

// TestSharedSlots: of many that are read at once, no more are under way than there are places.
func TestSharedSlots(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var under, most, reads atomic.Int64
		slots := make(chan struct{}, 3)
		for range 20 {
			s := &Shared[int]{every: time.Hour, timeout: time.Minute, slots: slots}
			s.read = func(context.Context) (int, error) {
				n := under.Add(1)
				defer under.Add(-1)
				most.Store(max(most.Load(), n))
				<-time.After(time.Second)
				return int(reads.Add(1)), nil
			}
			go func() { _, _, _ = s.Get(t.Context(), 0) }()
		}
		<-time.After(time.Minute)
		if most.Load() != 3 || reads.Load() != 20 {
			t.Errorf("%d at once, %d in all", most.Load(), reads.Load())
		}
	})
}

// TestRates: what goes in is told by ids, what goes out by what does not wait any more; what is not counted to its end
// tells nothing.
func TestRates(t *testing.T) {
	t.Parallel()
	var p past
	at := time.Now()
	see := func(id, backlog int64, later time.Duration) Point {
		m := Movement{State: State{Outbox: &relay.Sample{LastID: id, Backlog: backlog}}}
		p.see(&m, at.Add(later))
		return m.Now
	}
	if now := see(100, 10, 0); now.Of[In] != -1 || now.Of[Out] != -1 {
		t.Errorf("of the first look: %v", now)
	}
	if now := see(200, 30, 10*time.Second); now.Of[In] != 10 || now.Of[Out] != 8 {
		t.Errorf("%v", now)
	}
	if see(200, 30, 15*time.Second); !p.lastOut.Equal(at.Add(10 * time.Second)) {
		t.Errorf("the last record left the outbox at %v: the mean is of before", p.lastOut.Sub(at))
	}
	if now := see(400, relay.SampleLimit, 20*time.Second); now.Of[In] != 15 || now.Of[Out] != -1 {
		t.Errorf("of a count that ends at its limit: %v", now)
	}
}

// TestFlow: a consumer stands as long as records of one of its partitions wait and none of them is decided, whatever
// the others do; what is not known of one partition is not known of all.
func TestFlow(t *testing.T) {
	t.Parallel()
	var p past
	at := time.Now()
	see := func(later time.Duration, from, end [2]int64) Flow {
		c := inboxoperator.ConsumerDiagnosis{}
		c.Consumer = "ledger"
		m := Movement{Ends: map[Partition]int64{}}
		for i := range from {
			c.Partitions = append(c.Partitions, inboxoperator.PartitionState{
				Topic: "t", Partition: int32(i), From: from[i],
			})
			if end[i] >= 0 {
				m.Ends[Partition{"t", int32(i)}] = end[i]
			}
		}
		m.State = State{HasInbox: true, Inbox: []inboxoperator.ConsumerDiagnosis{c}}
		p.see(&m, at.Add(later))
		return m.Flows["ledger"]
	}
	for _, step := range []struct {
		after time.Duration
		from  [2]int64
		end   [2]int64
		want  Flow
	}{
		{0, [2]int64{5, 5}, [2]int64{5, 5}, Flow{Decided: -1}},
		{10 * time.Second, [2]int64{5, 5}, [2]int64{9, 25}, Flow{Waiting: 24, Decided: 0}},
		{20 * time.Second, [2]int64{5, 15}, [2]int64{9, 35}, Flow{Waiting: 24, Decided: .5, Stands: 10 * time.Second}},
		{30 * time.Second, [2]int64{9, 35}, [2]int64{9, 35}, Flow{Decided: 34. / 30}},
		{40 * time.Second, [2]int64{9, 35}, [2]int64{9, -1}, Flow{Waiting: -1, Decided: 34. / 30}},
	} {
		if got := see(step.after, step.from, step.end); got != step.want {
			t.Errorf("after %v: %+v, want %+v", step.after, got, step.want)
		}
	}
}

// TestPastIsKept: a day is kept, what is older than an hour in few points that have the highest figures.
func TestPastIsKept(t *testing.T) {
	t.Parallel()
	var p past
	at := time.Now()
	for i := range 2 * 24 * 360 {
		now := Point{At: at.Add(time.Duration(i) * SampleEvery)}
		if i == 12000 {
			now.Of[In] = 7
		}
		p.keep(now)
	}
	last := p.points[len(p.points)-1].At
	recent, high := 0, 0
	for _, one := range p.points {
		if last.Sub(one.At) <= time.Hour {
			recent++
		}
		if one.Of[In] == 7 {
			high++
		}
	}
	if age := last.Sub(p.points[0].At); recent != 361 || len(p.points) > 1100 || high != 1 || age < 23*time.Hour {
		t.Errorf("%d points, %d of the last hour, %d are high, the first is %v old", len(p.points), recent, high, age)
	}
}

// TestAwaySays: what a database that cannot be looked at needs.
func TestAwaySays(t *testing.T) {
	t.Parallel()
	for code, want := range map[string]string{
		"53300": "no connection left", "0A000": "Connect to the primary", "25006": "Connect to the primary",
		"57P03": "Look whether Postgres runs", "42601": "as it is",
	} {
		err := fmt.Errorf("reading: %w", &pgconn.PgError{Code: code, Message: "as it is"})
		if got := Away(err); !strings.Contains(got, want) {
			t.Errorf("%s: %q", code, got)
		}
	}
}
