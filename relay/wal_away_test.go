package relay_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/relay"
	"github.com/effectonce/effectonce/relay/operator"
)

// interruptions is a slog.Handler that sends the reasons why the WAL could not be read, and that lanes go to the table.
type interruptions struct{ heard, table chan string }

func (h interruptions) Enabled(context.Context, slog.Level) bool { return true }
func (h interruptions) WithAttrs([]slog.Attr) slog.Handler       { return h }
func (h interruptions) WithGroup(string) slog.Handler            { return h }

func (h interruptions) Handle(_ context.Context, r slog.Record) error {
	if strings.Contains(r.Message, "cannot be read for a while") {
		select {
		case h.table <- r.Message:
		default:
		}
	}
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "error" {
			select {
			case h.heard <- a.Value.String():
			default:
			}
		}
		return true
	})
	return nil
}

// TestWALKeepsItsNumbering: an interruption that ends by itself begins no new numbering, however long it takes: no
// relay could have published from the table meanwhile.
func TestWALKeepsItsNumbering(t *testing.T) {
	t.Parallel()
	const short = 3 * time.Second
	type situation struct {
		lease time.Duration
		make  func(t *testing.T, server *pgtest.Server, db *pgtest.DB, heard <-chan string)
	}
	for name, trouble := range map[string]situation{
		"a long outage of the database": {short, func(t *testing.T, server *pgtest.Server, _ *pgtest.DB,
			heard <-chan string,
		) {
			server.StopImmediate()
			began := time.Now()
			pgtest.Await(t, "many attempts", func() (bool, error) { // for longer than the relay waits
				<-heard
				return time.Since(began) > 2*short, nil
			})
			server.Start(t)
		}},
		"no free connection": {time.Minute, func(t *testing.T, _ *pgtest.Server, db *pgtest.DB, heard <-chan string) {
			cfg, err := pgconn.ParseConfig(db.AdminURL)
			if err != nil {
				t.Fatal(err)
			}
			cfg.RuntimeParams["replication"] = "database"
			var others []*pgconn.PgConn
			pgtest.Await(t, "a relay that is refused", func() (bool, error) {
				conn, err := pgconn.ConnectConfig(t.Context(), cfg)
				if err == nil {
					others = append(others, conn)
					return false, nil
				}
				db.Exec(t, `select pg_terminate_backend(active_pid) from pg_replication_slots where active`)
				select {
				case text := <-heard:
					return strings.Contains(text, "max_wal_senders"), nil
				default:
					return false, nil
				}
			})
			for _, conn := range others {
				_ = conn.Close(context.Background())
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := pgtest.NewServer(t)
			db := server.Database(t, migrations.Outbox)
			if _, err := operator.SetUpWAL(t.Context(), db.Pool, ""); err != nil {
				t.Fatal(err)
			}
			heard, table := make(chan string, 1000), make(chan string, 1)
			to := &memory{}
			r := newRelay(t, db, to, config(fromWAL, func(c *relay.Config) {
				c.Lease, c.Logger = trouble.lease, slog.New(interruptions{heard, table})
			}))
			startRelay(t, r)
			awaitStreaming(t, db)
			fill(t, db, 50, 5)
			awaitDrained(t, db)
			before := pgtest.One[string](t, db, `select outbox_id || '.' || incarnation from outbox_meta`)
			trouble.make(t, server, db, heard)
			select {
			case said := <-table:
				t.Errorf("the relay says %q", said)
			default:
			}
			db.Pool.Reset()
			fill(t, db, 50, 5)
			awaitDrained(t, db)
			if n := pgtest.One[int](t, db, `select count(*) from outbox_streamed`); n != relay.Lanes {
				t.Errorf("%d lanes come from the WAL", n)
			}
			for _, e := range to.events() {
				if e.Position.Epoch != before {
					t.Fatalf("an event was published in the numbering %s, the one before was %s", e.Position.Epoch,
						before)
				}
			}
		})
	}
}
