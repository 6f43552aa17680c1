package ui

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/effectonce/effectonce/internal/doctor"
	"github.com/effectonce/effectonce/ui/internal/reads"
)

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

// TestEverywhereSlots: a search of many databases asks no more at a time than are read for all pages, and
// passes none over.
func TestEverywhereSlots(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := &Handler{cfg: Config{Timeout: time.Minute}, most: reads.Limits{Looks: make(chan struct{}, 3)}}
		for range 20 {
			h.databases = append(h.databases, &reads.Database{})
		}
		q := &request{Request: httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil), h: h}
		var under, most, asked atomic.Int64
		q.everywhere(func(context.Context, int, *reads.Database) {
			most.Store(max(most.Load(), under.Add(1)))
			defer under.Add(-1)
			asked.Add(1)
			<-time.After(time.Second)
		})
		if most.Load() != 3 || asked.Load() != 20 || len(h.most.Looks) != 0 {
			t.Errorf("%d at once, %d of 20 were asked", most.Load(), asked.Load())
		}
		q.h.most.Looks = make(chan struct{}) // all places are taken, for longer than a page may take
		var late atomic.Int64
		q.everywhere(func(ctx context.Context, _ int, _ *reads.Database) {
			if ctx.Err() != nil {
				late.Add(1)
			}
		})
		if late.Load() != 20 {
			t.Errorf("%d of 20 were told that it is too late", late.Load())
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
		if text, err := r.beginning(t.Context()); err != nil || !strings.HasPrefix(text, "It runs.") {
			t.Fatalf("%q, %v", text, err)
		}
	}
	r := &replay{begun: make(chan struct{}), over: make(chan struct{}), err: errors.New("as the test wants it")}
	close(r.over)
	if text, err := r.beginning(t.Context()); err == nil {
		t.Errorf("one that was refused: %q", text)
	}
}

// TestGuided: a finding leads to the page that has its verb.
func TestGuided(t *testing.T) {
	t.Parallel()
	h := &Handler{cfg: Config{Prefix: "/ops"}}
	d := &reads.Database{At: reads.At{Name: "shop"}}
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
