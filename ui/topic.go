package ui

import (
	"cmp"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/effectonce/effectonce/internal/doctor"
	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/relay"
	"github.com/effectonce/effectonce/relay/operator"
	"github.com/effectonce/effectonce/ui/internal/reads"
	"github.com/effectonce/effectonce/ui/verbs"
)

type topicPage struct {
	DB, Topic    string
	ReadOnly     bool
	Outbox       *operator.TopicState
	Away         string
	NoKafka      bool
	Kafka        doctor.KafkaTopic
	KafkaSays    string
	Pinned       int64 // partitions
	InKafka      int64 // partitions; 0: unknown
	Resized      bool  // the partition count differs from the pinned one
	OtherCluster bool  // the brokers belong to another cluster
	Most         bool  // more events are held than were counted
	Partitions   []topicPartition
	Readers      []readerView
	Unread       string // databases whose consumers are not known
	Held         []heldEvent
	MoreHeld     bool
	HeldSays     string
	Pause        string // commands
	Resume       string
	Accept       string
	Anyway       string
	Cluster      string
	DiscardAll   string
}

// topicPartition is a partition in Kafka and in the outbox.
type topicPartition struct {
	operator.HeldPartition
	Kafka *doctor.KafkaPartition // nil: unknown
}

// Name returns the partition's number, or what stands in its place.
func (p topicPartition) Name() string {
	if p.Partition < 0 {
		return "the topic as a whole"
	}
	return strconv.Itoa(int(p.Partition))
}

// readerView is the progress of one consumer.
type readerView struct {
	DB, Consumer string
	Groups       []string
	Partitions   []readerPartition
}

type readerPartition struct {
	partitionView
	Committed []int64 // by group; -1: nothing, or unknown
}

type heldEvent struct {
	operator.HeldEvent
	Discard string // command
}

func showTopic(q *request) error {
	name := q.PathValue("topic")
	st, _, why := q.stateOf(q.db)
	p := topicPage{
		DB: q.db.Name, Topic: name, ReadOnly: !st.MayChange, NoKafka: q.h.cfg.Kafka == nil, Away: why,
		Pause:      reads.CommandOf(q.db, verbs.PauseTopic{Topic: name}),
		Resume:     reads.CommandOf(q.db, verbs.ResumeTopic{Topic: name}),
		DiscardAll: reads.CommandOf(q.db, verbs.DiscardHeld{Topic: name, All: true}),
	}
	if why == "" {
		if err := q.fillTopic(&p, name); err != nil {
			return err
		}
	}
	return q.render("topic", http.StatusOK, view{Title: "Topic " + name, Nav: "topics", Live: true, Body: p})
}

func (q *request) fillTopic(p *topicPage, name string) error {
	unknown := notFound("Neither this outbox nor a consumer here knows this topic.")
	if !q.who.Scope.whole(name) { // the figures count all tenants
		return unknown
	}
	readers, unread := reads.Readers(q.Context(), q.h.databases, name)
	p.Unread = strings.Join(unread, ", ")
	// A request for an unknown name leaves nothing in memory, and does not ask Kafka.
	known, _, err := q.db.Topics.Get(q.Context(), q.h.cfg.Timeout)
	switch {
	case len(readers) > 0, slices.ContainsFunc(known, func(t operator.Topic) bool { return t.Topic == name }):
	case err != nil && !pgerr.Absent(err):
		p.Away = reads.Away(err)
		return nil
	case len(unread) > 0: // a consumer of these may know it
		p.Away = "It is not in this outbox, and these databases have not answered: " + p.Unread + "."
		return nil
	default:
		return unknown
	}
	t, _, err := q.db.Detail(name, q.h.databases).Get(q.Context(), 2*q.h.cfg.Timeout)
	if err = cmp.Or(err, t.Err); err != nil {
		p.Away = reads.Away(err)
	}
	p.Outbox, p.Kafka = t.Outbox, t.Kafka
	if t.KafkaErr != nil {
		p.KafkaSays = t.KafkaErr.Error()
	}
	if o := t.Outbox; o != nil {
		p.Pinned, p.InKafka = int64(o.Partitions), int64(len(t.Kafka.Partitions))
		p.Resized = p.InKafka > 0 && p.Pinned > 0 && p.InKafka != p.Pinned
		p.OtherCluster = o.Cluster != "" && t.Kafka.Cluster != "" && o.Cluster != t.Kafka.Cluster
		p.Most = o.Held >= relay.SampleLimit
		accept := verbs.AcceptPartitions{Topic: name, Partitions: int(p.InKafka)}
		cluster := verbs.AcceptCluster{Cluster: "..."}
		var unknown []string
		if p.InKafka == 0 {
			unknown = []string{"--partitions=..."}
		}
		if p.OtherCluster {
			cluster.Cluster = t.Kafka.Cluster
		}
		p.Accept, p.Cluster = reads.CommandOf(q.db, accept, unknown...), reads.CommandOf(q.db, cluster)
		accept.Anyway = true
		p.Anyway = reads.CommandOf(q.db, accept, unknown...)
	}
	p.Partitions = partitionsOf(t)
	for _, r := range readers {
		p.Readers = append(p.Readers, viewOf(r, name, t.Kafka))
	}
	if t.HeldErr != nil {
		p.HeldSays = reads.Away(t.HeldErr)
	}
	p.MoreHeld = len(t.Held) > reads.Page
	for _, e := range t.Held[:min(len(t.Held), reads.Page)] {
		p.Held = append(p.Held, heldEvent{
			e, reads.CommandOf(q.db, verbs.DiscardHeld{Topic: name, MessageID: e.MessageID.String()}),
		})
	}
	return nil
}

// partitionsOf returns the partitions in Kafka, and others that have held events.
func partitionsOf(t reads.Topic) (list []topicPartition) {
	for i := range t.Kafka.Partitions {
		p := &t.Kafka.Partitions[i]
		list = append(list, topicPartition{operator.HeldPartition{Partition: int32(p.Partition)}, p})
	}
	if t.Outbox == nil {
		return list
	}
	for _, held := range t.Outbox.HeldIn {
		at := slices.IndexFunc(list, func(p topicPartition) bool { return p.Partition == held.Partition })
		if at < 0 {
			at, list = len(list), append(list, topicPartition{})
		}
		list[at].HeldPartition = held
	}
	return list
}

func viewOf(r reads.Reader, topic string, in doctor.KafkaTopic) readerView {
	v := readerView{DB: r.DB.Name, Consumer: r.Consumer, Groups: r.Groups()}
	ends := map[reads.Partition]int64{}
	for _, p := range in.Partitions {
		if p.End >= 0 {
			ends[reads.Partition{Topic: topic, Partition: int32(p.Partition)}] = p.End
		}
	}
	for _, p := range partitionsIn(r.DB, r.ConsumerDiagnosis, ends) {
		if p.Topic != topic {
			continue
		}
		one := readerPartition{partitionView: p}
		for _, group := range v.Groups {
			committed := int64(-1)
			for _, k := range in.Partitions {
				if at, ok := k.Groups[group]; ok && k.Partition == int(p.Partition) {
					committed = at
				}
			}
			one.Committed = append(one.Committed, committed)
		}
		v.Partitions = append(v.Partitions, one)
	}
	return v
}
