package main

import (
	"log/slog"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/kafkaconn"
	"github.com/effectonce/effectonce/internal/secret"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

// aclRow matches a row in the table of Kafka's ACLs in docs/security.md.
var aclRow = regexp.MustCompile("(?m)^\\| (relay|worker) \\| `([A-Z_]+)` \\| (topic|group) \\|")

// documentedACLs returns the ACLs that a relay or a worker needs according to the documentation.
func documentedACLs(t *testing.T, who, topic string) []kafkatest.ACL {
	t.Helper()
	page, err := os.ReadFile("../../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	var list []kafkatest.ACL
	for _, row := range aclRow.FindAllStringSubmatch(string(page), -1) {
		if row[1] == who {
			list = append(list, kafkatest.ACL{Operation: row[2], On: row[3], Name: topic}) // also the group
		}
	}
	if len(list) != 3 {
		t.Fatalf("docs/security.md lists for a %s the rights %v", who, list)
	}
	return list
}

// testLeastRights: relay and worker work with exactly the documented ACLs. Without one of them, the log or doctor names
// it.
func testLeastRights(t *testing.T, kafka *kafkatest.Secure, caFile string) {
	t.Parallel()
	newTopic := func(t *testing.T) string { return kafkatest.TopicAt(t, kafka.Brokers(), 2) }
	for missing, says := range map[string][]string{ // the texts of the relay and of doctor
		"":      {`"running"`, "one replica"},
		"WRITE": {"Topic Authorization Failed", "Allow WRITE on the topic"},
		"READ": {
			"could not check whether Kafka is ahead of this database",
			"could not be compared: ",
		},
		"DESCRIBE_CONFIGS": {`"running"`, "Allow DESCRIBE_CONFIGS on the topic"},
	} {
		t.Run("relay without "+missing, func(t *testing.T) {
			t.Parallel()
			db, topic := outboxDB(t), newTopic(t)
			for _, acl := range documentedACLs(t, "relay", topic) {
				if acl.Operation != missing {
					kafka.Allow(t, acl)
				}
			}
			env := settings(db, kafka.SASL).with("RELAY_KAFKA_TLS", "true", "RELAY_KAFKA_CA_FILE", caFile,
				"RELAY_KAFKA_SASL", "plain", "RELAY_KAFKA_USERNAME", kafkatest.LimitedUser,
				"RELAY_KAFKA_PASSWORD", kafkatest.SecurePassword, "RELAY_DRAIN_TIMEOUT", "0")
			fill(t, db, topic, 100)
			first := inProcess(t, env)
			if missing == "WRITE" {
				pgtest.Await(t, "the missing right in the relay's log", func() (bool, error) {
					return strings.Contains(first.output(), says[0]), nil
				})
			} else {
				awaitDrained(t, db)
				first.signal()
				<-first.done
				// Its events are in Kafka for the comparison.
				second := inProcess(t, env)
				pgtest.Await(t, "a running relay", func() (bool, error) {
					return strings.Contains(second.output(), `"running"`), nil
				})
				if out := second.output(); !strings.Contains(out, says[0]) {
					t.Errorf("want %s: %s", says[0], out)
				} else if missing != "READ" && strings.Contains(out, "could not") {
					t.Error(out)
				}
			}
			var text string
			pgtest.Await(t, "doctor reports "+says[1], func() (bool, error) {
				_, text, _ = command(t, env, "doctor")
				return strings.Contains(text, says[1]), nil
			})
			if missing == "" && (strings.Contains(text, "Allow ") || strings.Contains(text, "uthoriz") ||
				!strings.Contains(text, "no number in Kafka that this outbox has not given out")) {
				t.Errorf("doctor with all rights: %s", text)
			}
		})
	}
	for missing, says := range map[string]string{
		"": "", "READ topic": "Topic Authorization Failed", "READ group": "Group Authorization Failed",
		"DESCRIBE_CONFIGS topic": "DescribeConfigs on them",
	} {
		t.Run("worker without "+missing, func(t *testing.T) {
			t.Parallel()
			topic := newTopic(t)
			for _, acl := range documentedACLs(t, "worker", topic) {
				if acl.Operation+" "+acl.On != missing {
					kafka.Allow(t, acl)
				}
			}
			kafkatest.ProduceAt(t, kafka.Brokers(), topic, kafkatest.Record{
				Headers: []kafkatest.Header{{Key: event.HeaderID, Value: []byte(event.NewID().String())}},
			})
			var said output
			h := consume(t, kafkaconn.Config{
				Brokers: []string{kafka.SASL}, TLS: true, CAFile: caFile, SASL: kafkaconn.Plain,
				Username: kafkatest.LimitedUser, Password: secret.Of(kafkatest.SecurePassword),
			}, topic, slog.New(slog.NewTextHandler(&said, nil)))
			if says != "" {
				pgtest.Await(t, "the missing right in the worker's log", func() (bool, error) {
					return strings.Contains(said.String(), says), nil
				})
			}
			if missing == "" || missing == "DESCRIBE_CONFIGS topic" {
				h.await(t, 1)
			}
			if missing == "" && strings.Contains(said.String(), "uthoriz") {
				t.Error(said.String())
			}
		})
	}
}
