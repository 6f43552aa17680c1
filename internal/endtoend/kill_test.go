package endtoend

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/examples/ledger/ledger"
	"github.com/effectonce/effectonce/internal/child"
	"github.com/effectonce/effectonce/internal/kafkatest"
	"github.com/effectonce/effectonce/internal/pgschema"
	"github.com/effectonce/effectonce/internal/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/outbox"
)

// killsPerStep is how often a process dies at each of its steps, once at its first chance and then a little later.
const killsPerStep = 2

// TestKills kills a relay between claim, publish and settle, and a worker between effect, commit and offset, each with
// SIGKILL at every step. Nothing is lost, nothing is booked twice, order is kept. The kills are counted: none at some step
// fails.
func TestKills(t *testing.T) {
	kafkatest.RequireReal(t)
	s := newScene(t)
	kills := map[string]int{}
	relay := func(step string, after int) *child.Process { return s.start(t, "relay", step, after) }
	worker := func(step string, after int) *child.Process { return s.start(t, "worker", step, after) }
	for i := range killsPerStep {
		for _, step := range relaySteps {
			s.pay(t, 300)
			if died(t, relay(step, i*2)) {
				kills["relay "+step]++
			}
		}
	}
	last := relay("", 0)
	for i := range killsPerStep {
		for _, step := range workerSteps {
			s.pay(t, 100)
			if died(t, worker(step, i)) {
				kills["worker "+step]++
			}
		}
	}
	lastWorker := worker("", 0)
	pgtest.AwaitSQL(t, s.db, `select count(*) = 2 * $1 from ledger_entry`, s.payments)
	drained(t, s.db)
	for _, p := range []*child.Process{last, lastWorker} {
		p.Stop(syscall.SIGTERM, time.Minute)
	}
	s.check(t)
	for _, step := range relaySteps {
		report(t, kills, "relay "+step)
	}
	for _, step := range workerSteps {
		report(t, kills, "worker "+step)
	}
}

func report(t *testing.T, kills map[string]int, step string) {
	t.Helper()
	t.Logf("killed at %s: %d times", step, kills[step])
	if kills[step] == 0 {
		t.Errorf("nobody was killed at %s: the test proves nothing about it", step)
	}
}

// scene is a database with outbox, inbox and ledger, a topic, and what was paid.
type scene struct {
	db       *pgtest.DB
	topic    string
	payments int
	started  int
}

func newScene(t *testing.T) *scene {
	t.Helper()
	s := &scene{db: pgtest.NewDatabase(t, migrations.Outbox, migrations.Inbox), topic: kafkatest.Topic(t, 4)}
	s.db.Exec(t, `create table version (account text primary key, version int not null default 0)`)
	for _, ddl := range ledger.Tables().DDL {
		s.db.Exec(t, pgschema.Expand(ddl, ""))
	}
	return s
}

// pay appends n payments of 20 accounts, ten to a transaction, with the account's own count in a header.
func (s *scene) pay(t *testing.T, n int) {
	t.Helper()
	for range n / 10 {
		err := pgx.BeginFunc(t.Context(), s.db.Pool, func(tx pgx.Tx) error {
			var events []event.Event
			for range 10 {
				s.payments++
				account := fmt.Sprintf("account-%d", s.payments%20)
				var version int
				if err := tx.QueryRow(t.Context(), `insert into version values ($1, 1)
					on conflict (account) do update set version = version.version + 1 returning version`, account).Scan(&version); err != nil {
					return err
				}
				payload, err := json.Marshal(map[string]any{"payment_id": uuid.New(), "account_id": account, "amount": s.payments, "currency": "EUR"})
				if err != nil {
					return err
				}
				events = append(events, event.Event{
					Topic: s.topic, Key: account, Type: "PaymentCreated", ContentType: event.ContentTypeJSON,
					Payload: payload, Headers: map[string]string{"version": strconv.Itoa(version)},
				})
			}
			return outbox.Append(t.Context(), tx, events...)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// start runs this test binary as a relay or a worker that dies at a step.
func (s *scene) start(t *testing.T, role, step string, after int) *child.Process {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), envRole+"="+role, envKill+"="+step, envAfter+"="+strconv.Itoa(after), envURL+"="+s.db.URL,
		envKafka+"="+kafkatest.Brokers(t)[0], envTopic+"="+s.topic)
	s.started++
	p, err := child.Start(cmd, filepath.Join(t.TempDir(), fmt.Sprintf("%s-%d.log", role, s.started)), syscall.SIGKILL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Stop(syscall.SIGKILL, time.Minute) })
	return p
}

// died waits for a child's end and reports whether it was killed.
func died(t *testing.T, p *child.Process) bool {
	t.Helper()
	var exit *exec.ExitError
	if err := p.Wait(); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Errorf("a child ended by itself (%v): %s", err, p.LogTail())
		return false
	}
	return true
}

func drained(t *testing.T, db *pgtest.DB) {
	t.Helper()
	pgtest.AwaitSQL(t, db, `select not exists (select from outbox_event) and not exists (select from outbox_claim)`)
}

// check compares Kafka, the inbox and the ledger with what was paid.
func (s *scene) check(t *testing.T) {
	t.Helper()
	next, seen, records := map[string]int{}, map[string]bool{}, kafkatest.ReadAll(t, s.topic)
	for _, r := range records {
		if id := r.Get("ce_id"); !seen[id] {
			seen[id] = true
			key := string(r.Key)
			if next[key]++; r.Get("version") != strconv.Itoa(next[key]) {
				t.Fatalf("account %s: version %s first occurs where %d was due", key, r.Get("version"), next[key])
			}
		}
	}
	if len(seen) != s.payments {
		t.Errorf("%d payments are in Kafka, want %d", len(seen), s.payments)
	}
	t.Logf("%d payments, %d records, %d of them duplicates", s.payments, len(records), len(records)-len(seen))
	for what, sql := range map[string]string{
		"inbox rows":               `select count(*) from inbox_message`,
		"payments with two rows":   `select count(*) from (select from ledger_entry group by source_payment_id having count(*) = 2 and sum(amount) = 0) p`,
		"payments, each once paid": `select count(distinct abs(amount)) from ledger_entry`,
	} {
		if n := pgtest.One[int](t, s.db, sql); n != s.payments {
			t.Errorf("%s: %d, want %d", what, n, s.payments)
		}
	}
}
