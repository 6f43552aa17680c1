package relay_test

import (
	"context"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
)

// TestWALOfAnotherEncoding: in a database that is not in UTF8 a relay publishes from the table, and says why.
func TestWALOfAnotherEncoding(t *testing.T) {
	t.Parallel()
	beside := pgtest.NewDatabase(t)
	name := pgtest.One[string](t, beside, `select current_database() || '_latin1'`)
	beside.Exec(t, `create database `+name+` template template0 encoding 'LATIN1' locale 'C'`)
	t.Cleanup(func() {
		if _, err := beside.Pool.Exec(context.Background(), `drop database `+name+` with (force)`); err != nil {
			t.Error(err)
		}
	})
	u, err := url.Parse(beside.AdminURL)
	if err != nil {
		t.Fatal(err)
	}
	u.Path = "/" + name
	db := &pgtest.DB{URL: u.String(), AdminURL: u.String(), Schema: "public"}
	if db.Pool, err = pgxpool.New(t.Context(), db.URL); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Pool.Close)
	if err := migrations.Up(t.Context(), db.Pool.Config().ConnConfig, migrations.Options{
		Sets: []migrations.Set{migrations.Outbox},
	}); err != nil {
		t.Fatal(err)
	}
	r := newRelay(t, db, &memory{}, config(fromWAL))
	stop := startRelay(t, r)
	fill(t, db, 100, 10)
	awaitDrained(t, db)
	if err := r.WALUnavailable(); err == nil || !strings.Contains(err.Error(), "encoding is not UTF8") {
		t.Errorf("%v", err)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
}
