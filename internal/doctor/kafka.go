package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/effectonce/effectonce/internal/kafkaconn"
	"github.com/effectonce/effectonce/relay/operator"
)

// topic is a topic in Kafka; -1: unknown.
type topic struct {
	Name                    string
	Partitions, Replication int
	Away                    int   // replicas out of sync, of the partition with the most
	Brokers                 int   // of the cluster
	Leaderless              []int // partitions without a leader
	Settings                map[string]string
	Empty                   bool  // never written to
	Unacked                 bool  // an event that is older than the pin waits for it
	Err                     error // of reading the settings; the rest is known
}

// kafka examines the topics that the outbox knows or has events for, and those in Subject.Topics.
func (f *findings) kafka(ctx context.Context, s Subject, outbox operator.Diagnosis, window time.Duration) {
	if s.Kafka == nil {
		f.skip("kafka", "neither topics nor how far consumers are behind; give --kafka-brokers")
		return
	}
	if warning := s.Kafka.Warning(); warning != "" {
		f.add(Warn, "kafka login", warning, "Whoever listens has the password.", "--kafka-tls, or --kafka-sasl "+
			"scram-sha-512")
	}
	names, counts := slices.Concat(s.Topics, outbox.Waiting), map[string]int{}
	for _, t := range outbox.Topics {
		names, counts[t.Topic] = append(names, t.Topic), t.Partitions
	}
	slices.Sort(names)
	names = slices.Compact(names)
	client, closeIdle := s.Kafka.Client(10 * time.Second)
	defer closeIdle()
	f.brokers = Addresses(client)
	topics, meta, err := readTopics(ctx, client, names)
	if f.silent = err; meta == nil {
		return
	}
	f.cluster(meta, outbox.Cluster)
	for _, t := range topics {
		onlyPaused := slices.ContainsFunc(outbox.Topics, func(of operator.Topic) bool {
			return of.Topic == t.Name && of.PausedAt != nil && of.Partitions == 0 && of.Held == 0
		}) && !slices.Contains(outbox.Waiting, t.Name)
		if onlyPaused && t.Partitions < 0 && errors.Is(t.Err, kafka.UnknownTopicOrPartition) {
			f.misspelt(t.Name)
			continue
		}
		t.Unacked = slices.Contains(outbox.Unacked, t.Name)
		f.topic(t, counts[t.Name], window)
	}
}

// seeKafka is why nothing is known of what only Kafka knows.
const seeKafka = "Kafka did not answer: see `kafka`"

// noKafka says that a request got no answer. That is no failure if the time for all checks has ended.
func (f *findings) noKafka(conn Kafka, err, ended error) {
	if ended != nil {
		f.cutOff("kafka", err)
		return
	}
	f.add(Fail, "kafka", "does not answer as it should: "+err.Error(), "Nothing is published there. Events wait in "+
		"the outbox, in order.", "Look at "+conn.LookAt()+".")
}

// allow is what to do about an answer of Kafka that is an error.
func allow(what string, err error) string {
	if isDenied(err) {
		return "Allow " + what + " on the topic to --kafka-username: docs/security.md"
	}
	return readError
}

// isDenied reports whether Kafka refuses a request for a missing right.
func isDenied(err error) bool {
	return errors.Is(err, kafka.TopicAuthorizationFailed) || errors.Is(err, kafka.GroupAuthorizationFailed) ||
		errors.Is(err, kafka.ClusterAuthorizationFailed)
}

// misspelt warns of a paused topic that neither the outbox nor Kafka knows.
func (f *findings) misspelt(name string) {
	f.add(Warn, "topic "+name, "is paused, and does not exist; this outbox has published nothing to it",
		"If another topic was meant, that one is not paused.",
		"Look at the name. If it is wrong, pause the other one, and:")
	f.runWhy("topics", "resume", "--topic="+name)
}

func (f *findings) cluster(meta *kafka.MetadataResponse, pinned string) {
	if pinned != "" && meta.ClusterID != "" && meta.ClusterID != pinned {
		f.add(Fail, "kafka", fmt.Sprintf("%d brokers answer, of cluster %s, and the outbox publishes to %s",
			len(meta.Brokers), meta.ClusterID, pinned),
			"Relays refuse these brokers: their topics are not those that consumers read. All events wait.",
			"Look at --kafka-brokers. Only if the topics have moved to this cluster:")
		f.runWhy("topics", "accept-cluster", "--cluster="+meta.ClusterID)
		return
	}
	f.ok("kafka", "%d brokers answer, of cluster %s", len(meta.Brokers), meta.ClusterID)
}

// readTopics asks for topics. After a request without an answer, whose error it returns, it asks no more: the next one
// would wait as long.
func readTopics(ctx context.Context, client *kafka.Client, names []string) (list []topic, meta *kafka.MetadataResponse,
	silent error,
) {
	if names == nil {
		names = []string{} // nil would mean all
	}
	// kafka-go answers a request for metadata from its cache, even when no broker runs any more.
	if _, err := client.ApiVersions(ctx, &kafka.ApiVersionsRequest{}); err != nil {
		return nil, nil, err
	}
	meta, err := client.Metadata(ctx, &kafka.MetadataRequest{Topics: names})
	if err != nil {
		return nil, nil, err
	}
	for i := range meta.Topics {
		t := &meta.Topics[i]
		one := topic{Name: t.Name, Partitions: len(t.Partitions), Replication: -1, Brokers: len(meta.Brokers)}
		if t.Error != nil {
			one.Partitions, one.Err = -1, t.Error
			list = append(list, one)
			continue
		}
		for _, p := range t.Partitions {
			if one.Replication < 0 || len(p.Replicas) < one.Replication {
				one.Replication = len(p.Replicas)
			}
			if p.Error != nil || p.Leader.ID < 0 || p.Leader.Host == "" {
				one.Leaderless = append(one.Leaderless, p.ID)
			} else {
				one.Away = max(one.Away, len(p.Replicas)-len(p.Isr))
			}
		}
		if one.Err = silent; silent == nil {
			one.Settings, one.Err = readSettings(ctx, client, t.Name)
			silent = unlessAnswered(one.Err)
		}
		if silent == nil && len(one.Leaderless) == 0 {
			written, err := kafkaconn.Written(ctx, client, t.Name, one.Partitions)
			one.Empty, silent = err == nil && !written, unlessAnswered(err)
		}
		list = append(list, one)
	}
	return list, meta, silent
}

// unlessAnswered returns the error of a request that got no answer; nil: it was answered, perhaps with an error.
func unlessAnswered(err error) error {
	if _, answered := errors.AsType[kafka.Error](err); answered {
		return nil
	}
	return err
}

func readSettings(ctx context.Context, client *kafka.Client, name string) (map[string]string, error) {
	res, err := client.DescribeConfigs(ctx, &kafka.DescribeConfigsRequest{
		Resources: []kafka.DescribeConfigRequestResource{{
			ResourceType: kafka.ResourceTypeTopic, ResourceName: name,
			ConfigNames: []string{
				"min.insync.replicas", "retention.ms", "retention.bytes", "cleanup.policy",
				"unclean.leader.election.enable",
			},
		}},
	})
	if err != nil {
		return nil, err
	}
	settings := map[string]string{}
	for _, r := range res.Resources {
		if r.Error != nil {
			return nil, r.Error
		}
		for _, e := range r.ConfigEntries {
			settings[e.ConfigName] = e.ConfigValue
		}
	}
	return settings, nil
}

func (f *findings) topic(t topic, pinned int, window time.Duration) {
	check := "topic " + t.Name
	before := len(f.list)
	switch {
	case t.Partitions < 0 && errors.Is(t.Err, kafka.UnknownTopicOrPartition):
		f.absent(check, t, pinned)
		return
	case t.Partitions < 0:
		f.add(Fail, check, t.Err.Error(), "Its events are held until it can be used.",
			allow("DESCRIBE and WRITE", t.Err))
		return
	case pinned > 0 && t.Partitions != pinned:
		f.add(Fail, check, fmt.Sprintf("%d partitions, pinned to %d", t.Partitions, pinned),
			"A key's next events would go to another partition, past its earlier ones. Its events are held.",
			"Let every consumer read the topic to its end. Then:")
		f.runWhy("topics", "accept", "--topic="+t.Name, "--partitions="+strconv.Itoa(t.Partitions))
	}
	switch {
	case !t.Empty || pinned == 0:
	case t.Unacked:
		f.add(Warn, check, "nothing was ever written to it, and events are open that are older than its pin",
			"The relays have found the topic, and Kafka has acknowledged none of these events yet.",
			"Look at what is said of the relays and of Kafka.")
	default:
		f.add(Fail, check, "the outbox has published to it, and nothing was ever written to it",
			"It was deleted and made again: what was published before is gone with it, and consumers' "+
				"offsets are of the old one. Or nothing could be written yet.", "If it was made again: `relay "+
				"replay` publishes again what outbox_archive still has.")
	}
	if len(t.Leaderless) > 0 {
		slices.Sort(t.Leaderless)
		f.add(Fail, check, fmt.Sprintf("%d of %d partitions have no leader: %s", len(t.Leaderless), t.Partitions,
			strings.Trim(fmt.Sprint(t.Leaderless), "[]")),
			"Their events wait; the others go on.", "Bring the brokers of their replicas back.")
		f.tool("kafka-topics.sh", "--describe", "--topic", t.Name)
	}
	switch {
	case unlessAnswered(t.Err) != nil:
		f.unknown(check, seeKafka)
	case t.Err != nil:
		f.add(Warn, check, "its settings cannot be read: "+t.Err.Error(), "Replication and retention are not "+
			"looked at.", allow("DESCRIBE_CONFIGS", t.Err))
	default:
		f.replication(check, t)
		f.retention(check, t, window)
	}
	if len(f.list) == before {
		f.ok(check, "%d partitions, %d replicas, min.insync.replicas %s, retention %s", t.Partitions, t.Replication,
			t.Settings["min.insync.replicas"], retention(t))
	}
}

// internalTopics are Kafka's own.
var internalTopics = []string{
	"__cluster_metadata", "__consumer_offsets", "__share_group_state", "__transaction_state",
}

// absent says that a topic does not exist. A topic that was never published to may be created with any partition count.
func (f *findings) absent(check string, t topic, pinned int) {
	const means = "Its events are held until it does. It is not made by itself."
	if slices.Contains(internalTopics, t.Name) {
		f.add(Fail, check, "is one of Kafka's own topics", "Kafka makes it when it needs it, and lets nobody else "+
			"write to it.", "Give the events of the producer another topic.")
		return
	}
	replicas := strconv.Itoa(min(max(t.Brokers, 1), 3))
	partitions := "" // as many as the person wants
	if pinned > 0 {
		partitions = strconv.Itoa(pinned)
	}
	f.add(Fail, check, "does not exist", means, "")
	f.tool("kafka-topics.sh", "--create", "--topic", t.Name, "--partitions", partitions, "--replication-factor",
		replicas)
}

func (f *findings) replication(check string, t topic) {
	insync, _ := strconv.Atoi(t.Settings["min.insync.replicas"])
	configure := func(found, means, what string) {
		f.add(Warn, check, found, means, "")
		f.tool("kafka-configs.sh", "--alter", "--entity-type", "topics", "--entity-name", t.Name, "--add-config", what)
	}
	// Kafka never asks for more than there are replicas.
	if in := t.Replication - t.Away; in < min(insync, t.Replication) {
		f.add(Fail, check, fmt.Sprintf("%d of %d replicas are in sync, and min.insync.replicas is %d", in,
			t.Replication, insync), "Kafka acknowledges nothing of such a partition. Its events wait.",
			"Bring the brokers of its replicas back.")
		f.tool("kafka-topics.sh", "--describe", "--topic", t.Name)
	}
	switch {
	case t.Replication == 1:
		f.add(Warn, check, "one replica", "An acknowledged event is on one disk. Lost with it, it is lost: the "+
			"outbox has deleted it.", "Give it three replicas (kafka-reassign-partitions.sh), and "+
			"min.insync.replicas=2.")
	case insync < 2:
		configure(fmt.Sprintf("min.insync.replicas is %d", insync), "With acks=all an event may then be "+
			"acknowledged by one broker alone, and be lost with it.", "min.insync.replicas=2")
	case insync >= t.Replication:
		configure(fmt.Sprintf("min.insync.replicas is %d of %d replicas", insync, t.Replication),
			"No broker of a partition may be away: nothing is acknowledged meanwhile, and events wait.",
			fmt.Sprintf("min.insync.replicas=%d", t.Replication-1))
	}
	if t.Settings["unclean.leader.election.enable"] == "true" {
		configure("unclean.leader.election.enable is on", "A replica that lacks acknowledged events may "+
			"become leader: they are lost.", "unclean.leader.election.enable=false")
	}
}

func (f *findings) retention(check string, t topic, window time.Duration) {
	if policy := t.Settings["cleanup.policy"]; policy == "compact" || policy == "compact,delete" ||
		policy == "delete,compact" {
		f.add(Warn, check, "cleanup.policy is "+policy, "Compaction keeps the last event of a key only: a consumer "+
			"that is behind never sees the others.", "Leave it if events carry whole states; otherwise "+
			"cleanup.policy=delete.")
	}
	kept, ok := retained(t)
	if window == 0 || !ok || kept >= 0 && kept < window {
		return
	}
	f.add(Warn, check, fmt.Sprintf("retention is %s, the shortest inbox window here %d days", retention(t),
		int(window.Hours()/24)),
		"An event that is read later than the window cannot be judged any more and is quarantined: a new consumer "+
			"that reads history, or one that was away.",
		"Make inbox.Config.Window longer than the retention plus the longest outage, or the retention shorter.")
}

// retained returns how long records are kept; negative: without end.
func retained(t topic) (kept time.Duration, ok bool) {
	ms, err := strconv.ParseInt(t.Settings["retention.ms"], 10, 64)
	if err != nil {
		return 0, false
	}
	if ms < 0 || ms > int64(1<<62/time.Millisecond) {
		return -1, true
	}
	return time.Duration(ms) * time.Millisecond, true
}

func retention(t topic) string {
	kept, ok := retained(t)
	text := kept.String()
	switch {
	case !ok:
		text = "unknown"
	case kept < 0:
		text = "for ever"
	case kept%(24*time.Hour) == 0:
		text = fmt.Sprintf("%d days", int(kept.Hours()/24))
	}
	if n, err := strconv.ParseInt(t.Settings["retention.bytes"], 10, 64); err == nil && n >= 0 {
		text += fmt.Sprintf(" or %d bytes of a partition", n)
	}
	return text
}
