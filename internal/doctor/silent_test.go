package doctor

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/segmentio/kafka-go"

	"github.com/effectonce/effectonce/internal/kafkaconn"
	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
)

// TestSilentKafka: brokers that do not answer are one failure, before what is not known for that, and no lock of the
// database. If the time for all checks has ended they are none.
func TestSilentKafka(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Outbox, migrations.Inbox)
	db.Exec(t, `insert into outbox_topic (topic, partitions) values ('payments', 3)`)
	db.Exec(t, `insert into inbox_consumer (consumer_name, floor, window_days) values ('ledger', now(), 14),
		('mail', now(), 14)`)
	db.Exec(t, `insert into inbox_progress (consumer_name, topic, partition, from_offset, to_offset) values
		('ledger', 'payments', 0, 0, 0), ('mail', 'payments', 0, 0, 0)`)
	conn, err := kafkaconn.Config{Brokers: []string{"127.0.0.1:1"}}.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	s := Subject{DB: db.Pool, Schema: db.Schema, Kafka: conn}
	list := append(Examine(t.Context(), s), Restored(t.Context(), s)...)
	at := func(check string) int {
		return slices.IndexFunc(list, func(f Finding) bool { return f.Check == check })
	}
	const cause = "connection refused"
	expect(t, list, "kafka", Fail, cause)
	for _, check := range []string{"progress ledger", "progress mail", "restored"} {
		expect(t, list, check, Skip, "see `kafka`")
		if at("kafka") > at(check) {
			t.Errorf("%s comes before its cause", check)
		}
	}
	if at("kafka") > at("leases") {
		t.Error("the relays come before Kafka")
	}
	if n := strings.Count(fmt.Sprint(list), cause); n != 1 {
		t.Errorf("the cause is said %d times: %+v", n, list)
	}
	for _, f := range list {
		if f.Next == seeLocks || strings.Contains(f.Next+f.Command, "grants") || strings.Contains(f.Next, "Allow") {
			t.Errorf("%+v", f)
		}
	}
	f := findings{}
	f.failedAtKafka("progress ledger", context.DeadlineExceeded)
	expect(t, f.list, "progress ledger", Skip, "see `kafka`")
	f.noKafka(conn, context.DeadlineExceeded, context.DeadlineExceeded)
	expect(t, f.list, "kafka", Skip, context.DeadlineExceeded.Error())
}

// cut ends the time of one statement before it is sent.
type cut struct{ statement string }

func (c cut) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	if strings.HasPrefix(q.SQL, c.statement) {
		ended, cancel := context.WithDeadline(ctx, time.Unix(0, 0))
		cancel()
		return ended
	}
	return ctx
}

func (cut) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// TestCutOff: a check whose time ends says nothing of the database, which is well.
func TestCutOff(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDatabase(t, migrations.Outbox, migrations.Inbox)
	for check, statement := range map[string]string{
		"outbox": "-- relay: sequence", "inbox": "-- inbox: missing rights", "clock": queryClock,
	} {
		cfg := db.Pool.Config()
		cfg.ConnConfig.Tracer = cut{statement}
		pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		list := Examine(t.Context(), Subject{DB: pool, Schema: db.Schema})
		pool.Close()
		expect(t, list, check, Skip, context.DeadlineExceeded.Error())
		expect(t, list, "locks", Warn, "took too long")
		for _, f := range list {
			if f.Severity == Fail && !slices.Contains(serverWide, f.Check) {
				t.Errorf("%s: %+v", statement, f)
			}
		}
	}
}

// TestNewerTables: to migrate is no remedy for tables that are ahead.
func TestNewerTables(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Outbox)
	db.Exec(t, `insert into effectonce_migration (version_id, is_applied) values (19999, true)`)
	db.Exec(t, `comment on table outbox_event is 'effectonce: binaries from 19999 on'`)
	list := Examine(t.Context(), Subject{DB: db.Pool, Schema: db.Schema})
	expect(t, list, "schema outbox", Fail, "start a newer binary")
	for _, f := range list {
		if f.Check == "schema outbox" && f.Command != "" {
			t.Errorf("%+v", f)
		}
	}
}

// TestRemedies: grants are the remedy of what was denied, and of nothing else.
func TestRemedies(t *testing.T) {
	t.Parallel()
	refused := &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	sqlstate := func(code string) error {
		return fmt.Errorf("relay: %w", &pgconn.PgError{Code: code, SeverityUnlocalized: "ERROR", Message: "m"})
	}
	kafkaSays := func(err error) func(*findings) { return func(f *findings) { f.failedAtKafka("x", err) } }
	topicIs := func(t topic) func(*findings) {
		t.Name, t.Replication = "t", 3
		return func(f *findings) { f.topic(t, 0, 0) }
	}
	postgresSays := func(err error) func(*findings) { return func(f *findings) { f.failed("x", err) } }
	for name, c := range map[string]struct {
		look     func(*findings)
		severity Severity
		remedy   string
	}{
		"denied":              {postgresSays(sqlstate(pgerr.InsufficientPrivilege)), Fail, "--roles"},
		"another SQLSTATE":    {postgresSays(sqlstate(pgerr.DivisionByZero)), Fail, readError},
		"a full disk":         {postgresSays(sqlstate("53100")), Fail, readError},
		"lock_timeout":        {postgresSays(sqlstate(pgerr.LockNotAvailable)), Fail, seeLocks},
		"statement_timeout":   {postgresSays(sqlstate(pgerr.QueryCanceled)), Skip, seeLocks},
		"deadline":            {postgresSays(fmt.Errorf("x: %w", context.DeadlineExceeded)), Skip, seeLocks},
		"refused":             {postgresSays(refused), Skip, ""},
		"no ACL":              {kafkaSays(fmt.Errorf("x: %w", kafka.TopicAuthorizationFailed)), Fail, "Allow "},
		"no leader":           {kafkaSays(kafka.LeaderNotAvailable), Fail, readError},
		"no Kafka":            {kafkaSays(refused), Skip, ""},
		"no ACL of a topic":   {topicIs(topic{Partitions: -1, Err: kafka.TopicAuthorizationFailed}), Fail, "Allow "},
		"bad topic":           {topicIs(topic{Partitions: -1, Err: kafka.InvalidTopic}), Fail, readError},
		"no ACL for settings": {topicIs(topic{Partitions: 1, Err: kafka.TopicAuthorizationFailed}), Warn, "Allow "},
		"settings, later":     {topicIs(topic{Partitions: 1, Err: kafka.RequestTimedOut}), Warn, readError},
		"settings, no answer": {topicIs(topic{Partitions: 1, Err: refused}), Skip, ""},
	} {
		var f findings
		c.look(&f)
		one := f.list[0]
		if one.Severity != c.severity || !strings.Contains(one.Next+one.Command, c.remedy) ||
			one.Unknown != (c.severity == Skip) || (c.remedy == "") != (one.Next+one.Command == "") {
			t.Errorf("%s: %+v", name, one)
		}
		if passed := !Failed(f.list[:1]); passed != (c.severity == Warn) {
			t.Errorf("%s: passed: %v", name, passed)
		}
	}
	f := findings{}
	f.failed("x", refused)
	f.failed("y", refused)
	if severity, text := worst(f.list, "postgres"); severity != Fail || strings.Count(text, "refused") != 1 {
		t.Errorf("%s %s", severity, text)
	}
}
