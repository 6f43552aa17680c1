package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
)

const (
	nameDebezium = "Debezium outbox router"
	// Because of Java's JIT compiler, Connect is several times slower just after its start. The relay is restarted in
	// each turn.
	nameDebeziumFresh = "Debezium outbox router, just started"
)

// debeziumSettings stand beside the figures.
const debeziumSettings = kafkatest.DebeziumVersion + " in Kafka Connect 4.1.0 standalone (-Xmx2G, G1; one process " +
	"for all turns, and one started in each), max.batch.size=8192 " +
	"max.queue.size=32768 poll.interval.ms=5, producer acks=all linger.ms=5 batch.size=262144 " +
	"compression.type=snappy, " +
	"rows inserted in transactions of 1000, from the first record in Kafka to the last"

// debeziumConnector is a connector's configuration; the table holds the topic in aggregatetype.
func debeziumConnector(server *pgx.ConnConfig, slot string) map[string]string {
	return map[string]string{
		"connector.class":             "io.debezium.connector.postgresql.PostgresConnector",
		"tasks.max":                   "1",
		"plugin.name":                 "pgoutput",
		"database.hostname":           server.Host,
		"database.port":               strconv.Itoa(int(server.Port)),
		"database.user":               server.User,
		"database.password":           "unused",
		"database.dbname":             server.Database,
		"topic.prefix":                "debezium",
		"table.include.list":          "public.debezium_outbox",
		"slot.name":                   slot,
		"publication.name":            "debezium",
		"publication.autocreate.mode": "disabled",
		"snapshot.mode":               "no_data",
		"tombstones.on.delete":        "false",
		"max.batch.size":              "8192",
		"max.queue.size":              "32768",
		"poll.interval.ms":            "5",
		"transforms":                  "outbox",
		"transforms.outbox.type":      "io.debezium.transforms.outbox.EventRouter",
		"transforms.outbox.route.topic.replacement": "${routedByValue}",
	}
}

// arrival is the progress of a peer at a moment, with its resource use so far.
type arrival struct {
	at      time.Time
	records int
	own     float64 // CPU seconds of its process
	servers usage
}

// debeziumRun is a measurement, whose connector and slot have the same name.
type debeziumRun struct {
	name, connector string
	events          int
}

// debeziumOnce creates a slot, inserts n rows, starts a connector on the slot, and measures the time from the first
// record in the topic to the last, without the start and the WAL of other tables.
func (s *stack) debeziumOnce(ctx context.Context, c *kafkatest.Connect, run debeziumRun, payload [][]byte,
	rep *report,
) (f figure, err error) {
	topic, drop, err := s.topic(ctx, 0)
	if err != nil {
		return f, err
	}
	defer drop()
	server, err := pgx.ParseConfig(s.pg.URL())
	if err != nil {
		return f, err
	}
	name, n := run.connector, run.events
	if err := s.fillDebezium(ctx, name, topic, n, payload); err != nil {
		return f, fmt.Errorf("fill: %w", err)
	}
	began := s.arrivalOf(c, 0)
	if err := c.Add(ctx, name, debeziumConnector(server, name)); err != nil {
		return f, err
	}
	first, last, err := s.follow(ctx, c, name, topic, n)
	if err != nil {
		return f, err
	}
	if first.records >= n {
		first = began // so few that they came at once: include the start
	}
	if err := s.allArrived(ctx, rep, run.name, topic, n); err != nil {
		return f, err
	}
	if err := c.Remove(ctx, name); err != nil {
		return f, err
	}
	f = figureBetween(first, last)
	f.Name, f.PeakKiB = run.name, peakOf(strconv.Itoa(c.PID()))
	return f, c.Await(ctx, func() (bool, error) {
		dropped, err := s.db.Exec(ctx, queryDropSlot, name)
		return dropped.RowsAffected() == 1, err
	})
}

// fillDebezium creates the slot before it inserts rows, so that the connector reads all of them.
func (s *stack) fillDebezium(ctx context.Context, slot, topic string, n int, payload [][]byte) error {
	if err := s.exec(ctx, queryDebeziumTable, queryEmptyDebezium); err != nil {
		return err
	}
	var published bool
	if err := s.db.QueryRow(ctx, queryDebeziumPublished).Scan(&published); err != nil {
		return err
	}
	if !published {
		if err := s.exec(ctx, queryDebeziumPublication); err != nil {
			return err
		}
	}
	if err := s.exec(ctx, queryCheckpoint); err != nil {
		return err
	}
	if _, err := s.db.Exec(ctx, queryDebeziumSlot, slot); err != nil {
		return err
	}
	columns := []string{"id", "aggregatetype", "aggregateid", "type", "payload"}
	for some := range slices.Chunk(events(topic, n, payload), 1000) {
		_, err := s.db.CopyFrom(ctx, pgx.Identifier{"debezium_outbox"}, columns,
			pgx.CopyFromSlice(len(some), func(i int) ([]any, error) {
				return []any{[16]byte(some[i].ID), topic, some[i].Key, some[i].Type, string(some[i].Payload)}, nil
			}))
		if err != nil {
			return err
		}
	}
	return nil
}

// follow polls a topic until it has n records, and returns the arrival of the first ones and of all.
func (s *stack) follow(ctx context.Context, c *kafkatest.Connect, name, topic string, n int) (first, last arrival,
	err error,
) {
	asked := time.Now()
	err = c.Await(ctx, func() (bool, error) {
		got, err := s.arrived(ctx, topic)
		if err != nil {
			return false, err
		}
		if got > 0 && first.records == 0 {
			first = s.arrivalOf(c, got)
		}
		if got >= n {
			last = s.arrivalOf(c, got)
			return true, nil
		}
		if time.Since(asked) < time.Second {
			return false, nil
		}
		asked = time.Now()
		return false, c.Failure(ctx, name)
	})
	return first, last, err
}

func (s *stack) arrivalOf(c *kafkatest.Connect, records int) arrival {
	at := time.Now()
	own, _ := cpuOf(c.PID())
	return arrival{at, records, own, serverCPU()}
}

// figureBetween returns the figure of the time between two arrivals.
func figureBetween(first, last arrival) figure {
	n, seconds, used := last.records-first.records, last.at.Sub(first.at).Seconds(), last.servers.minus(first.servers)
	per := 1e6 / float64(max(n, 1))
	return figure{
		Events: n, Seconds: seconds, Rate: float64(n) / seconds,
		CPU: (last.own - first.own) * per, PostgresCPU: used.postgres * per, KafkaCPU: used.kafka * per,
	}
}
