package ui

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/effectonce/effectonce/internal/doctor"
	"github.com/effectonce/effectonce/relay"
)

func TestDiff(t *testing.T) {
	t.Parallel()
	var got []string
	for _, l := range diff(`{"a":1,"b":2,"c":3,"d":4,"e":5}`, `{"a":1,"b":2,"c":3,"d":5,"e":5}`) {
		got = append(got, l.Sign+strings.TrimSpace(l.Text))
	}
	want := []string{"…", ` "a": 1,`, ` "b": 2,`, ` "c": 3,`, `-"d": 4,`, `+"d": 5,`, ` "e": 5`, " }"}
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	// Two that are equal but for their spaces differ as they are.
	if lines := diff(`{"a":1}`, `{"a": 1}`); len(lines) != 2 {
		t.Errorf("%v", lines)
	}
	long := strings.Repeat("x\n", mostLines+1)
	if lines := diff(long, strings.Repeat("y\n", mostLines+1)); len(lines) < 2*mostLines {
		t.Errorf("%d lines", len(lines))
	}
}

// TestJudge: only what Postgres has answered is certain.
func TestJudge(t *testing.T) {
	t.Parallel()
	for text, errs := range map[string][]error{
		"It is unknown": {
			io.ErrUnexpectedEOF, context.DeadlineExceeded, fmt.Errorf("commit: %w", io.EOF),
			&pgconn.PgError{Code: "57P01", Severity: "FATAL"},
		},
		"Nothing was changed": {
			&pgconn.PgError{Code: "42501", Severity: "ERROR"}, &pgconn.PgError{Code: "25006", Severity: "ERROR"},
			&pgconn.PgError{Code: "40P01", Severity: "ERROR"}, errors.New("it stands in a list"),
			fmt.Errorf("x: %w", &pgconn.ConnectError{}),
		},
	} {
		for _, err := range errs {
			if _, o := judge(err); !strings.HasPrefix(o.Text, text) {
				t.Errorf("%#v: %s", err, o.Text)
			}
		}
	}
}

// TestShared: ten who look at once are shown one read.
func TestShared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		reads := 0
		s := &shared[int]{every: 5 * time.Second, timeout: time.Second, read: func(ctx context.Context) int {
			reads++
			select {
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
			}
			return reads
		}}
		for range 10 {
			go s.get(t.Context(), time.Second)
		}
		if v, at := s.get(t.Context(), time.Second); v != 1 || at.IsZero() {
			t.Errorf("%d of %v", v, at)
		}
		synctest.Wait()
		if v, _ := s.get(t.Context(), time.Second); v != 1 || reads != 1 {
			t.Errorf("%d, and %d reads", v, reads)
		}
		s.changed()
		if v, _ := s.get(t.Context(), time.Second); v != 2 {
			t.Errorf("after a change: %d", v)
		}
		ctx, cancel := context.WithCancel(t.Context())
		s.changed()
		cancel() // one viewer's end is not the read's
		s.get(ctx, time.Second)
		synctest.Wait()
		<-time.After(200 * time.Millisecond)
		if v, _ := s.get(t.Context(), 0); v != 3 {
			t.Errorf("after a viewer has gone: %d", v)
		}
	})
}

// TestEverywhereSlots: a search of many databases asks no more at a time than are read for all pages, and
// passes none over.
func TestEverywhereSlots(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := &Handler{cfg: Config{Timeout: time.Minute}, most: limits{looks: make(chan struct{}, 3)}}
		for range 20 {
			h.databases = append(h.databases, &database{})
		}
		q := &request{Request: httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil), h: h}
		var under, most, asked atomic.Int64
		q.everywhere(func(context.Context, int, *database) {
			most.Store(max(most.Load(), under.Add(1)))
			defer under.Add(-1)
			asked.Add(1)
			<-time.After(time.Second)
		})
		if most.Load() != 3 || asked.Load() != 20 || len(h.most.looks) != 0 {
			t.Errorf("%d at once, %d of 20 were asked", most.Load(), asked.Load())
		}
		q.h.most.looks = make(chan struct{}) // all places are taken, for longer than a page may take
		var late atomic.Int64
		q.everywhere(func(ctx context.Context, _ int, _ *database) {
			if ctx.Err() != nil {
				late.Add(1)
			}
		})
		if late.Load() != 20 {
			t.Errorf("%d of 20 were told that it is too late", late.Load())
		}
	})
}

// TestSharedSlots: of many that are read at once, no more are under way than there are places.
func TestSharedSlots(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var under, most, reads atomic.Int64
		slots := make(chan struct{}, 3)
		for range 20 {
			s := &shared[int]{every: time.Hour, timeout: time.Minute, slots: slots, read: func(context.Context) int {
				n := under.Add(1)
				defer under.Add(-1)
				most.Store(max(most.Load(), n))
				<-time.After(time.Second)
				return int(reads.Add(1))
			}}
			go s.get(t.Context(), 0)
		}
		<-time.After(time.Minute)
		if most.Load() != 3 || reads.Load() != 20 {
			t.Errorf("%d at once, %d in all", most.Load(), reads.Load())
		}
	})
}

// TestReplayThatIsOverHasBegun: a short replay may be over before anybody looks whether it has begun.
func TestReplayThatIsOverHasBegun(t *testing.T) {
	t.Parallel()
	for range 100 { // of two that are ready, select takes any
		r := &replay{begun: make(chan struct{}), over: make(chan struct{})}
		close(r.begun)
		close(r.over)
		if text, err := r.beginning(t.Context(), &Handler{}); err != nil || !strings.HasPrefix(text, "It runs.") {
			t.Fatalf("%q, %v", text, err)
		}
	}
	r := &replay{begun: make(chan struct{}), over: make(chan struct{}), err: errors.New("as the test wants it")}
	close(r.over)
	if text, err := r.beginning(t.Context(), &Handler{}); err == nil {
		t.Errorf("one that was refused: %q", text)
	}
}

// TestRates: what goes in is told by ids, what goes out by what does not wait any more; what is not counted to its end
// tells nothing.
func TestRates(t *testing.T) {
	t.Parallel()
	at := time.Now()
	of := func(id, backlog int64, later time.Duration) point {
		return pointOf(state{Outbox: &relay.Sample{LastID: id, Backlog: backlog}}, at.Add(later))
	}
	p := of(200, 30, 10*time.Second)
	p.since(of(100, 10, 0))
	if p.In != 10 || p.Out != 8 {
		t.Errorf("in %v, out %v", p.In, p.Out)
	}
	p = of(300, relay.SampleLimit, 20*time.Second)
	p.since(of(200, 30, 10*time.Second))
	if p.In != 10 || p.Out != -1 {
		t.Errorf("in %v, out %v of a count that ends at its limit", p.In, p.Out)
	}
}

func TestPlot(t *testing.T) {
	t.Parallel()
	at := time.Now()
	var p plot
	p.add(at.Add(-time.Hour), 0)
	p.add(at.Add(-time.Minute), -1) // not known: not drawn
	p.add(at, 10)
	if got := p.Line(); got != "0.0,26.0 120.0,2.0" {
		t.Error(got)
	}
	if got := p.Area(); got != "0.0,28 0.0,26.0 120.0,2.0 120,28" {
		t.Error(got)
	}
}

// TestGuided: a finding leads to the page that has its verb.
func TestGuided(t *testing.T) {
	t.Parallel()
	h := &Handler{cfg: Config{Prefix: "/ops"}}
	d := &database{Database: Database{Name: "shop"}}
	for _, c := range []struct {
		finding doctor.Finding
		leads   string
	}{
		{
			doctor.Finding{Check: "topic payments", Command: "relay topics accept --topic payments --partitions 4"},
			"/ops/topic/shop/payments",
		},
		{doctor.Finding{Check: "topic payments", Found: "does not exist"}, "/ops/topics"},
		{doctor.Finding{Check: "topic payments", Next: "`relay replay` publishes again"}, "/ops/archive"},
		{doctor.Finding{Check: "kafka", Command: "relay topics accept-cluster --cluster c"}, "/ops/topics"},
		{doctor.Finding{Check: "kafka"}, ""},
		{doctor.Finding{
			Check: "consumer ledger", Found: "2 events parked, 1 keys, 0 quarantined",
			Command: "relay inbox parked list --consumer ledger",
		}, "/ops/keys"},
		{doctor.Finding{
			Check: "consumer ledger", Found: "0 events parked, 0 keys, 1 quarantined",
			Command: "relay inbox parked list --consumer ledger",
		}, "/ops/consumers"},
		{doctor.Finding{Check: "consumer ledger", Command: "relay inbox resume --consumer ledger"}, "/ops/consumers"},
	} {
		if got := h.guided(d, c.finding); got.Href != c.leads || (got.Do == "") != (c.leads == "") {
			t.Errorf("%+v leads to %q (%q), want %q", c.finding, got.Href, got.Do, c.leads)
		}
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
		if got := away(err); !strings.Contains(got, want) {
			t.Errorf("%s: %q", code, got)
		}
	}
}
