package relay_test

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/admin"
	"github.com/effectonce/effectonce/relay"
	"github.com/effectonce/effectonce/relay/operator"
)

// TestQueryModes: poolers forbid prepared statements, so the relay works in every query mode of pgx, also with a
// configured schema.
func TestQueryModes(t *testing.T) {
	t.Parallel()
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
		pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			db, to := outboxDB(t), &memory{}
			db.Exec(t,
				`insert into outbox_event (topic, key, type, headers, payload) values ('payments', 'k', 'T',
						'{"a": "b"}', $1)`, []byte{0, 255, '0'})
			cfg, err := pgxpool.ParseConfig(db.AdminURL)
			if err != nil {
				t.Fatal(err)
			}
			cfg.ConnConfig.DefaultQueryExecMode = mode
			pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(pool.Close)
			r, err := relay.New(pool, to, config(func(c *relay.Config) { c.Schema = db.Schema }))
			if err != nil {
				t.Fatal(err)
			}
			stop := startRelay(t, r)
			awaitDrained(t, db)
			if _, err := operator.ReadStatus(t.Context(), pool, db.Schema); err != nil {
				t.Error(err)
			}
			if s, err := r.Sample(t.Context()); err != nil || s.Backlog != 0 || s.Owned != relay.Lanes {
				t.Errorf("sample %+v, %v", s, err)
			}
			if err := stop(); err != nil {
				t.Error(err)
			}
			if log := to.events(); len(log) != 1 || string(log[0].Payload) != "\x00\xff0" ||
				log[0].Headers["a"] != "b" {
				t.Errorf("published %+v", log)
			}
			o, err := operator.New(pool, db.Schema, "kim")
			if err != nil {
				t.Fatal(err)
			}
			parkedRow(t, db, 1, "k", false, false)
			if n, err := o.ReleaseKey(t.Context(), "t", "payments", "k", admin.Seen{}, "mended"); err != nil || n != 1 {
				t.Errorf("an operator releases %d events: %v", n, err)
			}
			if done, err := o.Audit(t.Context(), 10); err != nil || len(done) != 1 || done[0].Key != "k" {
				t.Errorf("the audit has %+v, %v", done, err)
			}
		})
	}
}
