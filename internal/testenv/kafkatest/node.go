package kafkatest

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/effectonce/effectonce/internal/testenv/child"
)

// clusterID is that of all clusters but those of NewOther.
const clusterID = "ZWZmZWN0b25jZS10ZXN0cw"

const storageTool = "kafka.tools.StorageTool"

// node is a broker process, and a controller if it is one of the voters.
type node struct {
	id               int
	port, controller int
	dir, libs        string
	cluster          string         // id; empty: clusterID
	process          *child.Process // nil while stopped
	secure           *tlsConfig     // nil: plaintext only
	shared           bool           // it is not killed and restarted
	optimized        bool           // by the second compiler: for benchmarks
}

func (n *node) addr() string { return fmt.Sprintf("127.0.0.1:%d", n.port) }

// log is the path of the broker's log, of all its starts.
func (n *node) log() string { return filepath.Join(n.dir, "server.log") }

// properties is the broker's configuration: small, fast to start, and without automatic creation of topics, which would
// hide mistakes.
func (n *node) properties(voters []*node, brokers int) string {
	isVoter, quorum := false, make([]string, len(voters))
	for i, v := range voters {
		quorum[i] = fmt.Sprintf("%d@127.0.0.1:%d", v.id, v.controller)
		isVoter = isVoter || v == n
	}
	roles, listeners := "broker", "PLAINTEXT://"+n.addr()
	if isVoter {
		roles = "broker,controller"
		listeners += fmt.Sprintf(",CONTROLLER://127.0.0.1:%d", n.controller)
	}
	replicas := min(3, brokers)
	advertised, protocols, more := "PLAINTEXT://"+n.addr(), "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT", []string(nil)
	if n.secure != nil {
		listeners += "," + n.secure.listeners()
		advertised += "," + n.secure.listeners()
		protocols += ",SASL_SSL:SASL_SSL,SSL:SSL,JUDGED:SASL_SSL"
		more = n.secure.properties()
	}
	if brokers == 1 {
		// For Deny; without ACLs everything is allowed. Not with several controllers: their votes would wait for the
		// ACLs, and the ACLs for the votes.
		more = append(more, "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer")
		if n.secure == nil {
			more = append(more, "allow.everyone.if.no.acl.found=true")
		}
	}
	// A short session moves a killed broker's partitions soon. The shared broker needs a long one: on a loaded machine
	// it would be fenced, and be away for all tests.
	session := "3000"
	if n.shared {
		session = "60000"
	}
	return strings.Join(append(more, []string{
		"process.roles=" + roles,
		fmt.Sprintf("node.id=%d", n.id),
		"controller.quorum.voters=" + strings.Join(quorum, ","),
		"listeners=" + listeners,
		"advertised.listeners=" + advertised,
		"controller.listener.names=CONTROLLER",
		"inter.broker.listener.name=PLAINTEXT",
		"listener.security.protocol.map=" + protocols,
		"log.dirs=" + filepath.Join(n.dir, "data"),
		"auto.create.topics.enable=false",
		fmt.Sprintf("default.replication.factor=%d", replicas),
		fmt.Sprintf("min.insync.replicas=%d", max(1, replicas-1)),
		fmt.Sprintf("offsets.topic.replication.factor=%d", replicas),
		"offsets.topic.num.partitions=4",
		fmt.Sprintf("transaction.state.log.replication.factor=%d", replicas),
		"transaction.state.log.num.partitions=4",
		"transaction.state.log.min.isr=1",
		"share.coordinator.state.topic.replication.factor=1",
		"share.coordinator.state.topic.min.isr=1",
		"group.initial.rebalance.delay.ms=0",
		// Tests of rebalances use sessions shorter than the default minimum of 6 s.
		"group.min.session.timeout.ms=500",
		"num.network.threads=2",
		"num.io.threads=4",
		"log.cleaner.dedupe.buffer.size=8388608",
		"broker.heartbeat.interval.ms=500",
		"broker.session.timeout.ms=" + session,
		"controlled.shutdown.max.retries=1",
	}...), "\n") + "\n"
}

func (n *node) java(main string, args ...string) *exec.Cmd {
	classes := filepath.Join(n.libs, "*")
	if n.secure != nil {
		classes += string(filepath.ListSeparator) + filepath.Join(n.secure.libs, "*")
	}
	base := []string{
		"-Xmx512m", "-Xms64m", "-XX:+UseSerialGC", "-Xshare:auto", "-Djava.awt.headless=true",
		"-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dlog4j.configuration=file:" + n.log4j(),
		"-Dkafka.logs.dir=" + n.dir, "-Djava.io.tmpdir=" + n.dir, "-cp", classes, main,
	}
	if !n.optimized || main == storageTool {
		// Half of a short life's processor time is the second compiler's.
		base = append([]string{"-XX:TieredStopAtLevel=1"}, base...)
	}
	if n.secure != nil {
		base = append([]string{"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls=" + n.secure.keysURL()}, base...)
	}
	cmd := exec.Command("java", append(base, args...)...)
	cmd.Dir = n.dir
	return cmd
}

func (n *node) log4j() string { return filepath.Join(n.dir, "log4j.properties") }

// Kafka before 4.0 brings a logger of its own, which says nothing without a configuration.
const log4jConfig = `log4j.rootLogger=WARN, out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=[%d] %p %m (%c)%n
`

// format writes the configuration and formats the log directory.
func (n *node) format(voters []*node, brokers int) error {
	if err := os.MkdirAll(n.dir, 0o700); err != nil {
		return err
	}
	config := filepath.Join(n.dir, "server.properties")
	if err := os.WriteFile(config, []byte(n.properties(voters, brokers)), 0o600); err != nil {
		return err
	}
	if err := os.WriteFile(n.log4j(), []byte(log4jConfig), 0o600); err != nil {
		return err
	}
	cmd := n.java(storageTool, "format", "-t", cmp.Or(n.cluster, clusterID), "-c", config)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("format Kafka's storage: %w\n%s", err, out)
	}
	return nil
}

func (n *node) start() error {
	if n.process != nil {
		return fmt.Errorf("broker %d is already running", n.id)
	}
	cmd := n.java("kafka.Kafka", filepath.Join(n.dir, "server.properties"))
	p, err := child.Start(cmd, n.log(), syscall.SIGKILL)
	if err != nil {
		return err
	}
	n.process = p
	return nil
}

// stop stops the broker. On SIGTERM it first hands its partitions over.
func (n *node) stop(sig os.Signal) {
	if n.process == nil {
		return
	}
	// A paused broker does not handle SIGTERM.
	_ = n.process.Signal(child.Resume)
	n.process.Stop(sig, 30*time.Second)
	n.process = nil
}
