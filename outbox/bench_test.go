//go:build unix

package outbox_test

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/outbox"
)

// payments makes n events of 512 bytes on 1,000 keys, with a trace header as most events have one.
func payments(n int) []event.Event {
	payload := bytes.Repeat([]byte("0123456789abcdef"), 32)
	events := make([]event.Event, n)
	for i := range events {
		events[i] = event.Event{
			Source: "payments", Topic: "payments", Key: fmt.Sprint("acc-", i%1000), Type: "PaymentCreated",
			ContentType: event.ContentTypeJSON, Payload: payload,
			Headers: map[string]string{event.HeaderTraceParent: parent},
		}
	}
	return events
}

// perEvent appends with pgx's pipeline of single inserts: what a user without Append would write.
func perEvent(ctx context.Context, tx pgx.Tx, events ...event.Event) error {
	var b pgx.Batch
	for i := range events {
		e := &events[i]
		b.Queue(`insert into outbox_event (message_id, source, topic, key, type, content_type, headers, payload)
			values ($1::text::uuid, $2, $3, $4, $5, $6, $7::text::jsonb, $8)`, event.NewID().String(), e.Source,
			e.Topic, e.Key, e.Type, e.ContentType, `{"traceparent":"`+e.Headers[event.HeaderTraceParent]+`"}`,
			e.Payload)
	}
	return tx.SendBatch(ctx, &b).Close()
}

// BenchmarkAppend decides where Append changes from one statement to COPY: docs/decisions/0001-append-many.md.
// Each operation is a transaction of its own, with its commit. The processor time of either side is what another busy
// process does not change, so that figures can be compared.
func BenchmarkAppend(b *testing.B) {
	methods := []struct {
		name string
		do   func(ctx context.Context, tx pgx.Tx, events ...event.Event) error
	}{{"append", outbox.Append}, {"statement", outbox.ByStatements}, {"copy", outbox.ByCopy}, {"inserts", perEvent}}
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeExec} {
		for _, n := range []int{1, 10, 30, 100, 300, 1000, 10000} {
			events := payments(n)
			for _, m := range methods {
				b.Run(fmt.Sprintf("mode=%s/n=%d/by=%s", strings.ReplaceAll(mode.String(), " ", "_"), n, m.name),
					func(b *testing.B) {
						pool := poolIn(b, pgtest.New(b, migrations.Outbox), mode)
						conn, err := pool.Acquire(b.Context())
						if err != nil {
							b.Fatal(err)
						}
						defer conn.Release()
						transaction := func() {
							if err := pgx.BeginFunc(b.Context(), conn,
								func(tx pgx.Tx) error { return m.do(b.Context(), tx, events...) }); err != nil {
								b.Fatal(err)
							}
						}
						transaction()
						b.ReportAllocs()
						server, client := serverTime(b, conn.Conn()), clientTime(b)
						for b.Loop() {
							transaction()
						}
						total := float64(n) * float64(b.N)
						b.ReportMetric(total/b.Elapsed().Seconds(), "events/s")
						b.ReportMetric(float64((clientTime(b)-client).Microseconds())/total, "client-µs/event")
						b.ReportMetric(float64((serverTime(b, conn.Conn())-server).Microseconds())/total,
							"server-µs/event")
					})
			}
		}
	}
}

// serverTime is the processor time of the connection's backend, as Linux tells it to a superuser.
func serverTime(b *testing.B, conn *pgx.Conn) time.Duration {
	b.Helper()
	var ns int64
	if err := conn.QueryRow(b.Context(), "select split_part(pg_read_file('/proc/self/schedstat'), ' ', $1)::bigint",
		1).Scan(&ns); err != nil {
		b.Fatal(err)
	}
	return time.Duration(ns)
}

func clientTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkPrepare is the checks and the schema's expansion alone, without a database.
func BenchmarkPrepare(b *testing.B) {
	for _, n := range []int{1, 1000} {
		events := payments(n)
		b.Run(fmt.Sprintf("n=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := outbox.Prepare(b.Context(), events...); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
