package consumer_test

import (
	"archive/zip"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/effectonce/effectonce/internal/testenv/child"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
)

// Kafka's console consumer and this package share a group. With its defaults the console consumer also knows an eager
// protocol; in one case it is cooperative only. It is tested as the group's leader and as a member.
func TestTheConsoleConsumerIsTolerated(t *testing.T) {
	t.Parallel()
	kafkatest.RequireReal(t)
	libs, err := kafkatest.Libs()
	if err != nil {
		t.Skip(err)
	}
	for name, c := range map[string]struct {
		leads    bool
		strategy string
	}{
		"a member with its defaults": {false, ""},
		"a leader with its defaults": {true, ""},
		"a cooperative leader":       {true, "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			topic := kafkatest.Topic(t, 4)
			cfg := config(topic)
			h := newHandler()
			var m *member
			if !c.leads {
				m = start(t, h, topic, cfg)
				await(t, "all partitions", owns(m, 4))
			}
			args := []string{
				"-Xmx128m", "-XX:+UseSerialGC", "-cp", filepath.Join(libs, "*"),
				consoleConsumer(t, libs), "--bootstrap-server",
				strings.Join(kafkatest.Brokers(t), ","), "--topic", topic, "--group", topic, "--consumer-property",
				"heartbeat.interval.ms=200",
			}
			if c.strategy != "" {
				args = append(args, "--consumer-property", "partition.assignment.strategy="+c.strategy)
			}
			java, err := child.Start(exec.Command("java", args...), filepath.Join(t.TempDir(), "log"), syscall.SIGKILL)
			if err != nil {
				t.Fatal(err)
			}
			defer java.Stop(syscall.SIGKILL, time.Second)
			defer func() {
				if t.Failed() {
					t.Log(java.LogTail())
				}
			}()
			if c.leads {
				await(t, "the console consumer's group", func() bool {
					return describeGroup(t, topic).State == "Stable"
				})
				m = start(t, h, topic, cfg)
			}
			await(t, "a share", owns(m, 2))
			kafkatest.Produce(t, topic, records(10, 0, 1, 2, 3)...)
			h.await(t, 20)
			java.Stop(syscall.SIGTERM, testTimeout)
			await(t, "the partitions that the console consumer left", owns(m, 4))
			kafkatest.Produce(t, topic, records(10, 0, 1, 2, 3)...)
			h.await(t, 60)
		})
	}
}

// consoleConsumer returns the main class of kafka-console-consumer.sh, which moved in Kafka 4.
func consoleConsumer(t *testing.T, libs string) string {
	t.Helper()
	jars, err := filepath.Glob(filepath.Join(libs, "kafka-tools-*.jar"))
	if err != nil || len(jars) == 0 {
		t.Fatalf("no kafka-tools in %s: %v", libs, err)
	}
	jar, err := zip.OpenReader(jars[0])
	if err != nil {
		t.Fatal(err)
	}
	defer jar.Close()
	const class = "org/apache/kafka/tools/consumer/ConsoleConsumer"
	if !slices.ContainsFunc(jar.File, func(f *zip.File) bool { return f.Name == class+".class" }) {
		return "kafka.tools.ConsoleConsumer"
	}
	return strings.ReplaceAll(class, "/", ".")
}
