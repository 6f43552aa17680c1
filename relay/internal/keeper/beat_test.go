package keeper_test

import (
	"log/slog"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/relay/internal/delivery"
	"github.com/effectonce/effectonce/relay/internal/keeper"
	"github.com/effectonce/effectonce/relay/internal/lanes"
	"github.com/effectonce/effectonce/relay/internal/outage"
	"github.com/effectonce/effectonce/relay/internal/signal"
	"github.com/effectonce/effectonce/relay/internal/sql"
	"github.com/effectonce/effectonce/relay/internal/start"
	"github.com/effectonce/effectonce/relay/internal/wal"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// TestClockOutlivesAFailedHeartbeat: what the server did not say is no time.
func TestClockOutlivesAFailedHeartbeat(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Outbox)
	faults := pgtest.NewFaults(t, db)
	schema, err := sql.For(db.Schema)
	if err != nil {
		t.Fatal(err)
	}
	quiet := slog.New(slog.DiscardHandler)
	k := &keeper.Keeper{Part: &wal.Part{}, Start: &start.Start{
		DB: db.Pool, Schema: schema, Owner: uuid.New(), Lease: time.Hour, Log: quiet,
		Lanes: lanes.New(lanes.Pumps), Signals: signal.New(0),
		Health:   delivery.NewHealth(-1, time.Now(), func() delivery.Pauses { return outage.NewBackOff() }),
		Postgres: &outage.Monitor{Log: quiet}, Kafka: &outage.Monitor{Log: quiet},
	}}
	s := k.Session("keeper")
	t.Cleanup(s.Close)
	if err := k.Beat(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if now, known := k.Clock.Now(); !known || now.IsZero() {
		t.Fatalf("after a heartbeat the database's clock shows %v", now)
	}
	there := time.Now().Add(48 * time.Hour)
	k.Clock.Set(there)
	join := pgtest.Place{Table: "relay_member", Op: "INSERT", Statement: "relay: join"}
	faults.Raise(t, pgtest.Fault{Place: join, Field: "owner", Value: k.Owner.String()}, "XX000")
	if err := k.Beat(t.Context(), s); err == nil {
		t.Fatal("a heartbeat that the server refuses succeeds")
	}
	if now, known := k.Clock.Now(); !known || now.Before(there) {
		t.Errorf("after a failed heartbeat the database's clock shows %v, and showed %v before", now, there)
	}
}
