package browser

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/segmentio/kafka-go"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/outbox"
	"github.com/effectonce/effectonce/outcome"
	"github.com/effectonce/effectonce/relay"
	"github.com/effectonce/effectonce/relay/operator"
)

// elsewhere is the mend of what no page can do.
func elsewhere(n *night) { n.outside() }

// failures are all that TestNightShift stages, in the order of the table.
var failures = []failure{
	{
		name: "a topic does not exist", check: "topic payments-eu", says: "does not exist",
		alert: "EventsHeld",
		stage: func(n *night) {
			n.relay(n.db.Pool, relay.Config{})
			n.append(missing, "k", "{}")
			n.until(isHeld)
			n.outside = func() { kafkatest.CreateTopic(n.t, n.brokers, missing, 3) }
		},
		mend: elsewhere, do: "the topic was made",
	},
	{
		name: "a topic was paused and forgotten", check: "paused", says: "the bank migrates",
		alert: "TopicPaused",
		stage: func(n *night) {
			o, err := operator.New(n.db.Pool, n.db.Schema, "bob")
			if err == nil {
				err = o.PauseTopic(n.t.Context(), n.topic, "the bank migrates")
			}
			if err != nil {
				n.t.Fatal(err)
			}
			n.db.Exec(n.t, "update outbox_paused_topic set paused_at = paused_at - interval '1 day'")
			n.relay(n.db.Pool, relay.Config{})
			n.append(n.topic, "k", "{}", "{}")
			n.until(isHeld)
		},
		mend: func(n *night) {
			n.goes("Topics", "the bank migrates")
			n.verb("Resume", n.topic, "Publish 2 events and go on", "goes on")
			n.until(isPublished)
		},
	},
	{
		name: "a topic has got more partitions", check: "topic " + theTopic, says: "4 partitions, pinned to 2",
		stage: func(n *night) {
			n.relay(n.db.Pool, relay.Config{})
			n.append(n.topic, "k", "{}")
			n.until(isPublished)
			kafkatest.Grow(n.t, n.brokers, n.topic, 4)
		},
		mend: func(n *night) {
			n.goes("Topic", "pinned to 2")
			n.verb("Accept another partition count", "", "Pin the topic to this count", "is pinned to 4 partitions.")
		},
	},
	{
		name: "an event is too large for its topic, and others of its key wait behind it", check: "parked",
		says:  "or alone",
		alert: "EventsParked",
		stage: func(n *night) {
			n.topic = kafkatest.TopicAt(n.t, n.brokers, 2, map[string]string{"max.message.bytes": "2000"})
			n.relay(n.db.Pool, relay.Config{})
			n.append(n.topic, "account-7", incompressible(), "{}")
			n.until("select count(*) = 2 from outbox_parked")
		},
		mend: func(n *night) {
			setTopic(n, "max.message.bytes", "1000000")
			n.goes("Blocked keys", "or alone")
			n.verb("Release", "account-7", "Release 2 events", "of its list, in order.")
			n.until(isPublished)
		},
	},
	{
		name: "the brokers' ACLs do not let the relay write", check: "held", says: "events",
		alert: "EventsHeld",
		stage: func(n *night) {
			n.outside = kafkatest.Deny(n.t, n.brokers, n.topic)
			n.relay(n.db.Pool, relay.Config{})
			n.append(n.topic, "k", "{}")
			n.until(isHeld)
		},
		mend: elsewhere, do: "the ACL was taken away",
	},
	{
		name: "a topic was deleted and made again", check: "topic " + theTopic, says: "nothing was ever written to it",
		stage: func(n *night) {
			n.relay(n.db.Pool, relay.Config{ArchiveDays: 2})
			n.append(n.topic, "k", "{}", "{}", "{}")
			n.until(isPublished)
			remake(n)
		},
		mend: func(n *night) {
			n.goes("Archive", "")
			n.presses("Plan a replay", "", false)
			n.fill("details[open] input[name=from]", "2020-01-01")
			n.fill("details[open] input[name=topic]", n.topic)
			n.presses("Count them", "", true)
			n.wants("3 events of 1 key")
			n.fill("form[method=post] input[name=reason]", "found by the night shift")
			n.presses("Publish 3 events once more", "", true)
			n.wants("It runs.")
			n.until("select count(*) = 6 from outbox_archive")
		},
	},
	{
		name: "Kafka is away", check: "kafka", says: "does not answer",
		alert: "RelayOutage",
		stage: func(n *night) {
			own := kafkatest.NewCluster(n.t, 1)
			n.brokers = own.Brokers()
			n.relay(n.db.Pool, relay.Config{})
			own.Kill(0)
			n.append(n.topic, "k", "{}")
			n.outside = func() { own.Start(n.t, 0) }
		},
		mend: elsewhere, do: "the broker was started",
	},
	{
		name: "the brokers' address leads to another Kafka cluster", check: "kafka",
		says:  "and the outbox publishes to",
		alert: "LanesUnowned",
		stage: func(n *night) {
			stop := n.relay(n.db.Pool, relay.Config{})
			n.append(n.topic, "k", "{}")
			n.until(isPublished)
			stop()
			own := kafkatest.NewOther(n.t, 1)
			n.brokers = own.Brokers()
			kafkatest.CreateTopic(n.t, n.brokers, n.topic, 2)
			n.relay(n.db.Pool, relay.Config{})
			n.append(n.topic, "k", "{}")
		},
		mend: func(n *night) {
			n.goes("Topics", "and the outbox publishes to")
			n.goes(n.topic, "")
			n.verb("Accept another Kafka cluster", "", "Pin the outbox, with all its topics",
				"is pinned to Kafka cluster")
			n.until(isPublished)
		},
	},
	{
		name: "no relay runs", check: "leases", says: "0 relays",
		alert: "RelayAbsent",
		stage: func(n *night) {
			n.append(n.topic, "k", "{}")
			n.outside = func() { n.relay(n.db.Pool, relay.Config{}) }
		},
		mend: elsewhere, do: "a relay was started",
	},
	{
		name: "the relay's machine is cut off from Postgres", check: "leases", says: "was last heard of",
		alert: "RelayOutage",
		stage: func(n *night) {
			proxy := pgtest.NewProxy(n.t, n.db.URL)
			pool, err := pgxpool.New(n.t.Context(), proxy.URL())
			if err != nil {
				n.t.Fatal(err)
			}
			n.t.Cleanup(pool.Close)
			n.relay(pool, relay.Config{Name: "relay-7"})
			n.append(n.topic, "k", "{}")
			n.until(isPublished)
			proxy.Refuse(true)
			proxy.CutAll()
			n.append(n.topic, "k", "{}")
			n.outside = func() { proxy.Refuse(false) }
		},
		mend: elsewhere, do: "the network was mended",
	},
	{
		name: "a scheduled event is not published when it is due", check: "scheduled",
		says: "due for more than a minute",
		stage: func(n *night) {
			e := event.Event{
				Topic: n.topic, Key: "k", Type: "ReminderDue", Payload: []byte("{}"),
				NotBefore: time.Now().Add(time.Second),
			}
			if err := pgx.BeginFunc(n.t.Context(), n.db.Pool, func(tx pgx.Tx) error {
				return outbox.Append(n.t.Context(), tx, e)
			}); err != nil {
				n.t.Fatal(err)
			}
		},
		mend: func(n *night) {
			n.goes("Scheduled", "due for more than a minute")
			n.verb("Cancel", "ReminderDue", "Do not publish it", "It will not be published.")
		},
	},
	{
		name: "no worker runs", check: "progress ledger", says: "no worker runs it",
		alert: "WorkerAbsent",
		stage: func(n *night) {
			n.relay(n.db.Pool, relay.Config{})
			stop := n.worker(inbox.Config{}, applies)
			n.append(n.topic, "k", "{}")
			n.until("select exists (select from inbox_progress where from_offset > 0)")
			stop()
			n.append(n.topic, "k", "{}")
			n.outside = func() { n.worker(inbox.Config{}, applies) }
		},
		mend: elsewhere, do: "a worker was started",
	},
	{
		name: "a new release's effect fails on a column that is not there", check: "progress ledger",
		says:  "the effect fails",
		alert: "ConsumerStalled",
		stage: func(n *night) {
			n.relay(n.db.Pool, relay.Config{})
			n.worker(inbox.Config{MaxAttempts: 1000}, func(ctx context.Context, tx pgx.Tx, _ event.Event) error {
				_, err := tx.Exec(ctx, "insert into balance (amount, currency) values (1, 'EUR')")
				return err
			})
			n.db.Exec(n.t, "create table balance (amount int)")
			n.append(n.topic, "k", "{}", "{}")
		},
		mend: func(n *night) {
			n.db.Exec(n.t, "alter table balance add currency text")
			n.goes("Consumers", "the effect fails")
			n.verb("Resume", n.topic, "Try at once", "resumes within seconds")
			n.until("select count(*) = 2 from balance")
		},
	},
	{
		name: "an effect fails for good, and its key waits", check: "consumer ledger", says: "events parked",
		alert: "InboxParked",
		stage: func(n *night) {
			poison(n, inbox.Config{})
			n.until("select count(*) = 2 from inbox_parked")
		},
		mend: func(n *night) {
			n.outside()
			n.goes("Blocked keys", "events parked")
			n.verb("Release", "account-7", "Release 2 events", "of its list, in order.")
			n.until("select not exists (select from inbox_parked)")
		},
	},
	{
		name: "a consumer has halted at an event", check: "consumer ledger", says: "halted",
		alert: "PartitionHalted",
		stage: func(n *night) {
			poison(n, inbox.Config{OnFailure: inbox.Halt})
			n.until("select exists (select from inbox_progress where halted_at is not null)")
		},
		mend: func(n *night) {
			n.outside()
			n.goes("Consumers", "halted")
			n.verb("Resume", n.topic, "Go on where it stands", "resumes within seconds")
			n.until("select not exists (select from inbox_progress where halted_at is not null)")
		},
	},
	{
		name: "an event's id is of next month, as of a wrong clock", check: "consumer ledger", says: "1 quarantined",
		alert: "InboxQuarantined",
		stage: func(n *night) {
			n.relay(n.db.Pool, relay.Config{})
			n.worker(inbox.Config{}, applies)
			e := event.Event{
				ID: event.IDAt(time.Now().AddDate(0, 1, 0)), Topic: n.topic, Key: "k", Type: "PaymentAccepted",
				Payload: []byte("{}"),
			}
			if err := pgx.BeginFunc(n.t.Context(), n.db.Pool, func(tx pgx.Tx) error {
				return outbox.Append(n.t.Context(), tx, e)
			}); err != nil {
				n.t.Fatal(err)
			}
			n.until("select exists (select from inbox_parked)")
		},
		mend: func(n *night) {
			n.goes("Consumers", "1 quarantined")
			n.goes("Only those", "")
			n.goes("1", "PaymentAccepted")
			n.verb("Release", "", "Release it", "is released")
			n.until("select not exists (select from inbox_parked)")
		},
	},
	{
		name: "two programs run one consumer", check: "consumer ledger", says: "run by several programs",
		stage: func(n *night) {
			n.relay(n.db.Pool, relay.Config{})
			n.worker(inbox.Config{Program: "ledger"}, applies)
			stop := n.worker(inbox.Config{Program: "ledger-of-the-test-team"}, applies)
			n.append(n.topic, "k", "{}")
			n.until("select count(*) = 1 from inbox_consumer where programs ?& '{ledger,ledger-of-the-test-team}'")
			n.outside = stop
		},
		mend: elsewhere, do: "the second program was stopped",
	},
	{
		name: "the inbox's maintenance does not run", check: "inbox days", says: "ahead",
		alert: "InboxDaysShort",
		stage: func(n *night) {
			n.worker(inbox.Config{DaysAhead: 1}, applies)
			n.until("select exists (select from inbox_consumer)")
			n.outside = func() {
				in, err := inbox.New(n.db.Pool, "ledger", inbox.Config{Schema: n.db.Schema})
				if err == nil {
					err = in.Maintain(n.t.Context())
				}
				if err != nil {
					n.t.Fatal(err)
				}
			}
		},
		mend: elsewhere, do: "so it was",
	},
	{
		name: "a payment's outcome is unknown, and recovery has given up", check: "idempotency keys", says: "operation",
		stage: func(n *night) {
			n.db = keysInTrouble(n.t)
			n.pool = n.db.Pool
			n.db.Exec(n.t, "delete from idempotency_key where key <> 'order-51'")
		},
		mend: func(n *night) {
			n.goes("Idempotency keys", "operation")
			n.presses("Complete", "order-51", false)
			n.fill("details[open] input[name=code]", "201")
			n.fill("details[open] input[name=reason]", "the bank says that it has paid")
			n.presses("Tell it", "", true)
			n.wants("It is completed")
		},
	},
}

// missing is a topic that nobody has made.
const missing = "payments-eu"

// incompressible is a payload of 4 KB.
func incompressible() string {
	var b strings.Builder
	for range 110 {
		b.WriteString(event.NewID().String())
	}
	return b.String()
}

// poison has a worker fail for good at the events of a key, until outside is called.
func poison(n *night, cfg inbox.Config) {
	mended := make(chan struct{})
	n.outside = func() { close(mended) }
	n.relay(n.db.Pool, relay.Config{})
	n.worker(cfg, func(context.Context, pgx.Tx, event.Event) error {
		select {
		case <-mended:
			return nil
		default:
			return outcome.Terminal("NO_ACCOUNT", errors.New("the ledger has no such account"))
		}
	})
	n.append(n.topic, "account-7", "{}", "{}")
}

func setTopic(n *night, name, value string) {
	n.t.Helper()
	res, err := n.client().IncrementalAlterConfigs(n.t.Context(), &kafka.IncrementalAlterConfigsRequest{
		Resources: []kafka.IncrementalAlterConfigsRequestResource{{
			ResourceType: kafka.ResourceTypeTopic, ResourceName: n.topic,
			Configs: []kafka.IncrementalAlterConfigsRequestConfig{{
				Name: name, Value: value, ConfigOperation: kafka.ConfigOperationSet,
			}},
		}},
	})
	if err == nil {
		err = res.Resources[0].Error
	}
	if err != nil {
		n.t.Fatal(err)
	}
}

// remake deletes the topic, and makes it again.
func remake(n *night) {
	n.t.Helper()
	deleteTopic(n)
	kafkatest.CreateTopic(n.t, n.brokers, n.topic, 2)
}

func deleteTopic(n *night) {
	n.t.Helper()
	client := n.client()
	res, err := client.DeleteTopics(n.t.Context(), &kafka.DeleteTopicsRequest{Topics: []string{n.topic}})
	if err == nil {
		err = res.Errors[n.topic]
	}
	if err != nil {
		n.t.Fatal(err)
	}
	pgtest.Await(n.t, "no topic", func() (bool, error) {
		meta, err := client.Metadata(n.t.Context(), &kafka.MetadataRequest{Topics: []string{n.topic}})
		gone := err == nil && len(meta.Topics) == 1 &&
			errors.Is(meta.Topics[0].Error, kafka.UnknownTopicOrPartition)
		return gone, err
	})
}
