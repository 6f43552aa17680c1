package foreign

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/effectonce/effectonce/consumer"
	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/publisher"
)

// TestPlainJava: records of a Java producer, which have no id, are applied once, identified by their position in the
// log, although another group reads them again: with deduplication by ids and by offsets, as docs/foreign.md says. And
// our publisher chooses the same partitions as Java's producer.
func TestPlainJava(t *testing.T) {
	t.Parallel()
	kafkatest.RequireReal(t)
	if _, err := exec.LookPath("javac"); err != nil {
		t.Skip("needs a JDK: there is no javac")
	}
	libs, err := kafkatest.Libs()
	if err != nil {
		t.Fatal(err)
	}
	const each = 50
	brokers, topic := kafkatest.Brokers(t), kafkatest.Topic(t, partitions)
	cmd := exec.CommandContext(t.Context(), "java", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
		"-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
		"-cp", filepath.Join(libs, "*"), "testdata/PlainProducer.java", strings.Join(brokers, ","), topic,
		strconv.Itoa(each), strconv.Itoa(customers))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	records := kafkatest.ReadAll(t, topic)
	if len(records) != each*customers {
		t.Fatalf("%d records", len(records))
	}
	to, err := publisher.NewKafka(brokers, publisher.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = to.Close() }()
	choose, err := to.Route(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	known := map[uuid.UUID]bool{}
	for _, r := range records {
		if at := choose(&event.Event{Topic: topic, Key: string(r.Key)}); at != r.Partition {
			t.Errorf("key %s: Java chose partition %d, the publisher chooses %d", r.Key, r.Partition, at)
		}
		known[event.RecordID(topic, r.Partition, r.Offset, r.Time)] = true
	}
	for _, by := range []inbox.Dedup{inbox.ByID, inbox.ByOffset} {
		t.Run(by.String(), func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t, migrations.Inbox)
			db.Exec(t, effects)
			in, err := inbox.New(db.Pool, "plain", inbox.Config{Schema: db.Schema, Dedup: by})
			if err != nil {
				t.Fatal(err)
			}
			for i := range 2 {
				group := fmt.Sprint(topic, by, i)
				c, err := consumer.New(in.Each(reserve), brokers, []string{topic},
					consumer.Config{Group: group, Logger: quiet()})
				if err != nil {
					t.Fatal(err)
				}
				stop := start(t, c.Run)
				awaitEffects(t, db, brokers, group, topic, each*customers)
				stop()
			}
			checkOrder(t, db)
			rows, err := db.Pool.Query(t.Context(), "select id from effect")
			if err != nil {
				t.Fatal(err)
			}
			for rows.Next() {
				var id uuid.UUID
				if err := rows.Scan(&id); err != nil || !known[id] {
					t.Errorf("the effect's id %v is not that of a record (%v)", id, err)
				}
			}
			if err := rows.Err(); err != nil {
				t.Error(err)
			}
			want := map[inbox.Dedup]int{inbox.ByID: each * customers, inbox.ByOffset: 0}[by]
			if n := pgtest.One[int](t, db, "select (select count(*) from inbox_message) + (select count(*) from "+
				"inbox_message_any)"); n != want {
				t.Errorf("%d rows of ids, want %d", n, want)
			}
		})
	}
}
