package main

import (
	"fmt"
	"io"
	"log/slog"
	"reflect"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/cmd/internal/service"
	"github.com/effectonce/effectonce/publisher"
	"github.com/effectonce/effectonce/relay"
)

// TestRunHasThePackagesDefaults: `relay run` without flags uses the defaults of relay.New and publisher.NewKafka. They
// are defined twice: in the packages, and in the flags that --help shows.
func TestRunHasThePackagesDefaults(t *testing.T) {
	t.Parallel()
	var c cli
	line := service.CommandLine{Name: "relay", Prefix: "RELAY_", Env: environment{
		"RELAY_DATABASE_URL": "postgres://127.0.0.1:1/none", "RELAY_KAFKA_BROKERS": deadBroker,
	}.get}
	if _, err := line.Parse(&c, []string{"run"}, io.Discard, io.Discard); err != nil {
		t.Fatal(err)
	}
	s, err := c.Run.start(&program{log: slog.New(slog.DiscardHandler), env: environment{}.get})
	if err != nil {
		t.Fatal(err)
	}
	defer s.pool.Close()
	defer func() { _ = s.kafka.Close() }()

	pool, err := pgxpool.New(t.Context(), "postgres://127.0.0.1:1/none")
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	kafka, err := publisher.NewKafka([]string{deadBroker}, publisher.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = kafka.Close() }()
	zero, err := relay.New(pool, kafka, relay.Config{})
	if err != nil {
		t.Fatal(err)
	}
	compared := sameValues(t, "relay.Config.", configOf(s.relay), configOf(zero)) +
		sameValues(t, "publisher.Config.", configOf(s.kafka), configOf(kafka))
	if compared < 20 {
		t.Errorf("%d fields were compared", compared)
	}
}

// configOf returns the Config of a value, with defaults filled in.
func configOf(made any) reflect.Value { return reflect.ValueOf(made).Elem().FieldByName("cfg") }

// sameValues compares the fields of two structs that have plain values, and returns their number.
func sameValues(t *testing.T, name string, got, want reflect.Value) (compared int) {
	t.Helper()
	for i := range got.NumField() {
		switch got.Field(i).Kind() {
		case reflect.Int, reflect.Int64, reflect.Bool, reflect.String:
			compared++
			if g, w := fmt.Sprint(got.Field(i)), fmt.Sprint(want.Field(i)); g != w {
				t.Errorf("%s%s is %s by the flags, and %s by the package", name, got.Type().Field(i).Name, g, w)
			}
		}
	}
	return compared
}
