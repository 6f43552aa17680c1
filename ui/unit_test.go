package ui

import (
	"context"
	"errors"
	"fmt"
	"html/template"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/segmentio/kafka-go"

	inboxoperator "github.com/effectonce/effectonce/inbox/operator"
	"github.com/effectonce/effectonce/internal/doctor"
	"github.com/effectonce/effectonce/relay"
	"github.com/effectonce/effectonce/ui/internal/reads"
)

// TestOutboxStep: a step takes the colour of its finding, and an old backlog alone is not red.
func TestOutboxStep(t *testing.T) {
	t.Parallel()
	of := func(oldest time.Duration) step {
		st := reads.State{Outbox: &relay.Sample{Backlog: 1, Oldest: oldest, Members: 1}}
		return (&Handler{}).outboxSteps(st, reads.Movement{}, nil)[0]
	}
	fresh := of(time.Second)
	fresh.worse(bad)
	if old := of(time.Hour).Severity; fresh.Severity != bad || old != look {
		t.Errorf("%q with a finding, %q of an hour", fresh.Severity, old)
	}
}

// TestVerdict: movement decides. What stands, or is not known, is never called well.
func TestVerdict(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		fails, warns, unsure int
		stands, moves        bool
		severity, says       string
	}{
		{0, 0, 0, false, false, well, "Nothing waits."},
		{0, 0, 0, false, true, well, "Everything moves."},
		{0, 2, 0, false, true, look, "It works, and something needs a look."},
		{0, 0, 0, true, true, look, "Something stands."},
		{0, 1, 0, true, false, look, "Something stands."},
		{0, 1, 1, true, true, unknown, "Not everything is known."},
		{1, 1, 1, true, true, bad, "Something is wrong."},
	} {
		severity, says := verdict(c.fails, c.warns, c.unsure, c.stands, c.moves)
		if severity != c.severity || says != c.says {
			t.Errorf("%+v: %s, %s", c, severity, says)
		}
	}
}

// TestDated: a finding that is minutes old does not pass for one of now.
func TestDated(t *testing.T) {
	t.Parallel()
	for ago, want := range map[time.Duration]string{
		59 * time.Second: "x", 9*time.Minute + 1: "x (looked at 9 min ago)",
	} {
		list := []doctor.Finding{{Found: "x"}}
		if dated(list, ago); list[0].Found != want {
			t.Errorf("after %v: %q", ago, list[0].Found)
		}
	}
}

// TestMovement: what waits and has not moved for 15 seconds stands; without a second look that is not known.
func TestMovement(t *testing.T) {
	t.Parallel()
	consumer := inboxoperator.ConsumerDiagnosis{}
	consumer.Consumer = "ledger"
	consumer.Partitions = []inboxoperator.PartitionState{{Topic: "t"}}
	h := &Handler{cfg: Config{Kafka: &kafka.Client{}}}
	for name, c := range map[string]struct {
		sample  relay.Sample
		flow    reads.Flow
		in      float64
		why     string
		says    string
		unknown int
	}{
		"all is decided": {flow: reads.Flow{Decided: 3}, in: 3, says: "Everything moves."},
		"nothing comes":  {says: "Nothing waits."},
		"the first look": {
			flow: reads.Flow{Waiting: 3, Decided: -1}, in: -1, says: "Not everything is known.", unknown: 1,
		},
		"one that has just come": {flow: reads.Flow{Waiting: 1}, says: "Everything moves."},
		"a consumer stands": {
			flow: reads.Flow{Waiting: 3, Stands: 16 * time.Second}, in: 3, says: "Something stands.",
		},
		"it has stood shortly": {
			flow: reads.Flow{Waiting: 3, Stands: 14 * time.Second}, in: 3, says: "Everything moves.",
		},
		"an old event": {
			sample: relay.Sample{Backlog: 1, Members: 1, Oldest: 16 * time.Second}, in: 3, says: "Something stands.",
		},
		"Kafka was not asked": {flow: reads.Flow{Waiting: -1}, in: 3, says: "Not everything is known.", unknown: 1},
		"the look hangs":      {in: 3, why: "It has not answered.", says: "Not everything is known.", unknown: 2},
	} {
		st := reads.State{Outbox: &c.sample, HasInbox: true, Inbox: []inboxoperator.ConsumerDiagnosis{consumer}}
		m := reads.Movement{State: st, Flows: map[string]reads.Flow{"ledger": c.flow}}
		m.Now.Of[reads.In], m.Now.Of[reads.Waiting] = c.in, float64(c.flow.Waiting)
		m.Now.Of[reads.Decided], m.Now.Of[reads.Out] = c.flow.Decided, -1
		one := overviewDatabase{Steps: h.stepsOf(&reads.Database{}, st, m, figuresOf(st, m), c.why)}
		one.moves(st, m)
		if _, says := verdict(0, 0, len(one.Unknown), one.Stands, one.Moves || one.Waits); says != c.says ||
			len(one.Unknown) != c.unknown {
			t.Errorf("%s: %s, not known: %q", name, says, one.Unknown)
		}
	}
}

// TestSentence: a code is not said twice.
func TestSentence(t *testing.T) {
	t.Parallel()
	for _, c := range [][3]string{
		{"no_account", "no_account: it has none", "it has none"},
		{"no_account", "no_account_yet", "no_account_yet"},
		{"", ": it has none", ": it has none"},
	} {
		if got := sentence(c[0], c[1]); got != c[2] {
			t.Errorf("%q: %q", c, got)
		}
	}
}

// TestSaid: what is in backticks is code, and nothing is markup.
func TestSaid(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]template.HTML{
		"run `relay run`, <b>then</b>": "run <code>relay run</code>, &lt;b&gt;then&lt;/b&gt;",
		"one ` alone":                  "one ` alone",
	} {
		if got := said(text); got != want {
			t.Errorf("%q: %s", text, got)
		}
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
			Check: "consumer ledger", Found: "2 events parked, 1 key, 0 quarantined",
			Command: "relay inbox parked list --consumer ledger",
		}, "/ops/keys"},
		{doctor.Finding{
			Check: "consumer ledger", Found: "most of its last events are parked, 27 in two minutes: x x 27",
			Command: "relay inbox parked list --consumer ledger",
		}, "/ops/failures"},
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
