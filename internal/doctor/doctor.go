// Package doctor examines a database, the tables in it, and Kafka. Each finding says what was found, what it means and
// what to do next. It changes nothing.
package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/segmentio/kafka-go"

	"github.com/effectonce/effectonce/admin"
	inboxoperator "github.com/effectonce/effectonce/inbox/operator"
	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/internal/pgsession"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/relay/operator"
)

// Severity of a Finding.
type Severity string

const (
	// OK: as it should be.
	OK Severity = "ok"
	// Skip: not examined, and therefore unknown.
	Skip Severity = "skip"
	// Warn: it works, and deserves a look.
	Warn Severity = "warn"
	// Fail: a promise is broken, or something does not work.
	Fail Severity = "fail"
)

// Finding is the result of a check.
type Finding struct {
	Check    string   `json:"check"` // what was looked at, in a word or two
	Severity Severity `json:"severity"`
	Found    string   `json:"found"`
	Means    string   `json:"means,omitempty"` // empty when it is OK or Skip
	Next     string   `json:"next,omitempty"`  // what to do, in words
	// Command is the next command, complete and quoted for a shell, to run after Next. Empty: no single command helps.
	Command string `json:"command,omitempty"`
	// Unknown: of Skip, it could not look. Otherwise there was nothing to look at, or it is not asked to.
	Unknown bool `json:"unknown,omitempty"`
	// Acknowledged is set by Mark.
	Acknowledged *admin.Acknowledgement `json:"acknowledged,omitempty"`
}

// Subject says what to examine.
type Subject struct {
	DB     *pgxpool.Pool
	Schema string
	// Kafka is asked about topics. Nil: not examined.
	Kafka Kafka
	// Topics are examined in addition to those that the outbox has published to, or has events for.
	Topics []string
	// LongTransaction is the age at which an open transaction is a warning. Default 5 minutes.
	LongTransaction time.Duration
	// ReadsOnly skips the grants of relays and workers: the role of DB only reads.
	ReadsOnly bool
	// Flags name the database in Finding.Command, such as "--outbox=orders". The doctor adds --schema itself.
	Flags []string
}

// Kafka connects to the brokers: a kafkaconn.Conn, or the caller's client.
type Kafka interface {
	// Client returns a client whose requests end after timeout, and a function that closes its connections.
	Client(timeout time.Duration) (client *kafka.Client, closeIdle func())
	// Warning returns what is unwise about the login; "": nothing.
	Warning() string
	// LookAt says which settings may be wrong if the brokers do not answer as they should.
	LookAt() string
}

// findings collects findings. A check that fails to look is a finding too.
type findings struct {
	list     []Finding
	where    []string // flags that name the database in commands
	inSchema string
	brokers  string // in the form of Kafka's tools
	silent   error  // of the first request that Kafka did not answer
}

func (f *findings) ok(check, format string, args ...any) {
	f.list = append(f.list, Finding{Check: check, Severity: OK, Found: counted(fmt.Sprintf(format, args...))})
}

// plurals are those of the findings' figures.
var plurals = regexp.MustCompile(`\b1 (broker|day|event|key|lane|migration|offset|partition|record|relay|replica|row|` +
	`schema|session|standby|transaction)s\b`)

// counted writes "1 events" as "1 event".
func counted(text string) string { return plurals.ReplaceAllString(text, "1 $1") }

func (f *findings) skip(check, why string) {
	f.list = append(f.list, Finding{
		Check: check, Severity: Skip, Found: "not looked at: " + strings.Join(strings.Fields(why), " "),
	})
}

// unknown says that a check could not look.
func (f *findings) unknown(check, why string) {
	f.skip(check, why)
	f.list[len(f.list)-1].Unknown = true
}

func (f *findings) add(severity Severity, check, found, means, next string) {
	// pgx's errors have several lines.
	found = counted(strings.Join(strings.Fields(found), " "))
	f.list = append(f.list, Finding{Check: check, Severity: severity, Found: found, Means: means, Next: next})
}

const (
	notKnown  = "What cannot be looked at is not known to work."
	readError = "Read the error."
)

// failedAtKafka is failed for an error of a broker: one that is silent holds no lock of the database.
func (f *findings) failedAtKafka(check string, err error) {
	if unlessAnswered(err) != nil {
		f.unknown(check, seeKafka)
		f.silent = err
		return
	}
	f.add(Fail, check, "could not look: "+err.Error(), notKnown, allow("DESCRIBE and READ", err))
}

// cutOff says that a check took too long: Locks says of that what is known.
func (f *findings) cutOff(check string, err error) {
	f.unknown(check, err.Error())
	f.list[len(f.list)-1].Next = seeLocks
}

// failed says that a check could not look. What ended without an answer says nothing of what it looked for.
func (f *findings) failed(check string, err error) {
	err = pgsession.Advise(err)
	found, next := "could not look: "+err.Error(), readError
	switch {
	case pgerr.Is(err, pgerr.LockNotAvailable):
		next = seeLocks
	case waited(err):
		f.cutOff(check, err)
		return
	case pgerr.Away(err) && !pgerr.Answered(err):
		f.unknown(check, "Postgres did not answer: see `postgres`")
		if !slices.ContainsFunc(f.list, func(f Finding) bool { return f.Check == "postgres" }) {
			f.unanswered(err)
		}
		return
	case pgerr.Denied(err) != "":
		f.add(Fail, check, found, notKnown, "Grant to this role what it lacks; this prints what each role needs.")
		f.run("migrate", "--roles", "--print")
		return
	}
	f.add(Fail, check, found, notKnown, next)
}

// Examine runs all checks, one after another. Errors are findings.
func Examine(ctx context.Context, s Subject) []Finding {
	if s.LongTransaction == 0 {
		s.LongTransaction = 5 * time.Minute
	}
	f := findings{where: s.Flags, inSchema: s.Schema}
	if !f.postgres(ctx, s.DB) {
		return f.list
	}
	server, err := readServer(ctx, s.DB)
	if err != nil {
		f.unanswered(err)
		return f.list
	}
	f.server(server)
	f.encryption(s.DB.Config().ConnConfig)
	f.pooler(ctx, s.DB)
	f.clock(ctx, s.DB)
	f.sessions(ctx, s)
	if server.Recovery {
		f.standby(ctx, s.DB)
		return f.list // such a server cannot answer most of the other checks
	}
	f.disk(ctx, s.DB)
	f.tables(ctx, s)
	f.altered(ctx, s.DB, s.Schema)
	f.triggers(ctx, s)
	f.waits(ctx, s)
	f.others(ctx, s)
	return append(f.list, Locks(ctx, s, f.list)...)
}

func (f *findings) unanswered(err error) {
	next := cmp.Or(pgerr.Refused(err), pgerr.Unreached(err), "Look at --database-url, and whether Postgres runs.")
	if pgerr.Is(err, pgerr.TooManyConnections) {
		next = "Postgres answers, and has no connection left for this role or database. As a superuser: " +
			"select usename, application_name, count(*) from pg_stat_activity group by 1, 2 order by 3 desc; " +
			"then smaller pools, a pooler, or a higher max_connections or connection limit."
	}
	f.add(Fail, "postgres", "does not answer as it should: "+err.Error(), "Nothing works without it.", next)
}

// tables examines the outbox and the inbox that the role may read, and their topics.
func (f *findings) tables(ctx context.Context, s Subject) {
	var pinned operator.Diagnosis
	var window time.Duration
	var consumers []inboxoperator.ConsumerDiagnosis
	before := len(f.list)
	outboxHere, outbox := f.schema(ctx, s, migrations.Outbox)
	inboxHere, inboxed := f.schema(ctx, s, migrations.Inbox)
	if keysHere, _ := f.schema(ctx, s, migrations.Idempotency); !outboxHere && !inboxHere && !keysHere {
		f.add(Fail, "schema", "no tables of effectonce here", "No relay and no worker can work on this database.",
			"Are --database-url and --schema right? If they are, make the tables.")
		f.run("migrate")
	}
	foreign := 0
	if outbox {
		d, err := operator.Diagnose(ctx, s.DB, s.Schema, s.ReadsOnly)
		switch {
		case err != nil:
			f.failed("outbox", err)
		case slices.Contains(d.MissingRights, "table outbox_lane: select") &&
			slices.Contains(d.MissingRights, "table outbox_event: insert"):
			foreign++
		default:
			f.outbox(d)
			f.slot(ctx, s)
			pinned = d
		}
	}
	if inboxed {
		d, err := inboxoperator.Diagnose(ctx, s.DB, s.Schema, s.ReadsOnly)
		switch {
		case err != nil:
			f.failed("inbox", err)
		case slices.Contains(d.MissingRights, "table inbox_message: insert") &&
			slices.Contains(d.MissingRights, "table inbox_parked: insert"):
			foreign += 2
		default:
			f.inbox(d)
			consumers, window = d.Consumers, shortest(d)
		}
	}
	switch {
	case foreign == 0:
	case foreign == 1 && inboxed:
		f.skip("outbox", "this role has no grants on it (a worker's user needs none)")
	case foreign == 2 && outbox:
		f.skip("inbox", "this role has no grants on it (a relay's user needs none)")
	default:
		f.add(Fail, "grants", "this role has no grants on the tables", "Neither a relay nor a worker that connects "+
			"as this role works.",
			grant("effectonce_relay or effectonce_inbox"))
		f.run("migrate", "--roles", "--print")
	}
	f.kafka(ctx, s, pinned, window)
	f.progress(ctx, s.Kafka, consumers)
	if f.silent != nil { // the cause before what follows from it
		cause := findings{}
		cause.noKafka(s.Kafka, f.silent, ctx.Err())
		f.list = slices.Insert(f.list, before, cause.list...)
	}
}

// grant says how to give the grants that `relay migrate --roles --print` prints.
func grant(role string) string {
	return "Grant " + role + " to the user; this prints what makes the role."
}

// schema reports whether the tables of a set exist, and whether they can be examined.
func (f *findings) schema(ctx context.Context, s Subject, set migrations.Set) (here, usable bool) {
	check := "schema " + string(set)
	list, err := migrations.Applied(ctx, s.DB, migrations.Options{Schema: s.Schema, Sets: []migrations.Set{set}})
	if err != nil {
		f.failed(check, err)
		return true, false
	}
	applied := 0
	for _, m := range list {
		if m.Applied {
			applied++
		}
	}
	if applied == 0 {
		f.skip(check, "no tables of it here (relay migrate makes them; is --schema right?)")
		return false, false
	}
	if err := migrations.Check(ctx, s.DB, migrations.Options{
		Schema: s.Schema,
		Sets:   []migrations.Set{set},
	}); err != nil {
		const means = "This binary and the tables do not fit."
		if errors.Is(err, migrations.ErrNewer) {
			f.add(Fail, check, err.Error(), means, "Take a newer binary: to migrate does not help.")
			return true, false
		}
		f.add(Fail, check, err.Error(), means, "Migrate the tables.")
		f.run("migrate")
		return true, false
	}
	f.ok(check, "%d migrations, as this binary wants them", applied)
	return true, true
}

// Failed reports whether anything fails, or a check could not look.
func Failed(list []Finding) bool {
	return slices.ContainsFunc(list, func(f Finding) bool { return f.Severity == Fail || f.Unknown })
}
