package consumer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/sleep"
)

// Consumer is one member of a consumer group. Make one per process (or more: each is a member), and Run it once.
type Consumer struct {
	handler       inbox.Handler
	brokers       []string
	topics        []string
	cfg           Config
	outage        *outage
	client        *client // set by Run
	loggedMissing string  // of Run: the topics that cannot be read, as they were logged last

	standstill standstill

	mu      sync.Mutex
	started bool
	member  *session // nil: it is in no group
}

// New returns a consumer that feeds h with the events of topics. It checks everything that can be checked without a
// broker; Run waits for brokers and topics that are not there.
func New(h inbox.Handler, brokers, topics []string, cfg Config) (*Consumer, error) {
	if h == nil {
		return nil, errors.New("consumer: no handler: pass what Each or Batch of an inbox returns")
	}
	if len(brokers) == 0 {
		return nil, errors.New(`consumer: no brokers: pass at least one address, such as "localhost:9092"`)
	}
	for _, b := range brokers {
		if host, port, err := net.SplitHostPort(b); err != nil || host == "" || port == "" {
			return nil, fmt.Errorf("consumer: broker %q is not host:port", b)
		}
	}
	if len(topics) == 0 || slices.Contains(topics, "") {
		return nil, errors.New("consumer: topics must name at least one topic, and none may be empty")
	}
	orDefault(&cfg.Group, h.Consumer())
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	c := &Consumer{
		handler: h, brokers: slices.Clone(brokers),
		topics: slices.Compact(slices.Sorted(slices.Values(topics))), cfg: cfg,
	}
	c.cfg.Logger = cfg.Logger.With("group", cfg.Group)
	c.outage = &outage{log: c.cfg.Logger, observer: &c.cfg.Observer}
	return c, nil
}

// Run joins the group and consumes until ctx ends. Then it fetches no more, lets running handlers finish for up to
// DrainTimeout, commits what they decided, leaves the group and returns nil. The handler's Prepare is called first,
// again and again until it succeeds. Brokers and topics that are away are waited for, and a topic holds up no other;
// the only errors are those of using a Consumer twice. Run returns when the handlers have: one that ignores its ctx
// holds it up.
func (c *Consumer) Run(ctx context.Context) error {
	c.mu.Lock()
	started := c.started
	c.started = true
	c.mu.Unlock()
	if started {
		return errors.New("consumer: Run was called before: make a new Consumer")
	}
	if !c.prepare(ctx) {
		return nil
	}
	c.client = newClient(&c.cfg, c.brokers, c.topics)
	defer c.client.close()
	for checked := false; ; checked = true {
		topics := c.awaitTopics(ctx)
		if len(topics) == 0 {
			return nil
		}
		if !checked {
			c.checkRetention(ctx, topics)
		}
		c.session(ctx, topics)
	}
}

// prepare lets the handler get ready; false: ctx ended first.
func (c *Consumer) prepare(ctx context.Context) bool {
	said := false
	return retry(ctx, func() bool {
		err := c.handler.Prepare(ctx, c.cfg.Group)
		if err != nil && !said && ctx.Err() == nil {
			said = true
			c.cfg.Logger.Error("the handler cannot get ready: trying again until it can", "error", err)
		}
		return err == nil
	})
}

// retry calls do with growing pauses until it succeeds; false: ctx ended.
func retry(ctx context.Context, do func() bool) bool {
	wait := newBackOff()
	for ctx.Err() == nil {
		if do() {
			return ctx.Err() == nil
		}
		_ = sleep.For(ctx, wait.NextBackOff())
	}
	return false
}

// awaitTopics waits until there is a topic that can be read, and returns those that can. None: ctx ended.
func (c *Consumer) awaitTopics(ctx context.Context) (topics []string) {
	const part = "topics"
	retry(ctx, func() bool {
		found, missing, err := c.client.sizes(ctx, c.topics)
		switch {
		case ctx.Err() != nil:
		case err != nil:
			c.outage.fail(part, err)
		default:
			c.outage.works(part)
			c.logMissing(missing)
			topics = slices.Sorted(maps.Keys(found))
		}
		return len(topics) > 0
	})
	return topics
}

// logMissing logs once which topics cannot be read.
func (c *Consumer) logMissing(missing map[string]error) {
	before := c.loggedMissing
	c.loggedMissing = fmt.Sprint(missing) // in the order of its keys
	switch {
	case c.loggedMissing == before:
	case len(missing) > 0:
		c.cfg.Logger.Error("topics are missing: create them (kafka-topics.sh --create), or let this user describe "+
			"and read them; the others are consumed meanwhile",
			"topics", strings.Join(slices.Sorted(maps.Keys(missing)), ", "), "answers", c.loggedMissing)
	case before != "":
		c.cfg.Logger.Info("no topic is missing any more")
	}
}

// client is everything but the group: metadata, list offsets, fetch.
type client struct {
	addr      net.Addr
	conns     *conns
	transport *kafka.Transport
}

func newClient(cfg *Config, brokers, topics []string) *client {
	cs := newConns(cfg.Dial)
	return &client{addr: kafka.TCP(brokers...), conns: cs, transport: &kafka.Transport{
		Dial: cs.dial, DialTimeout: netTimeout, ClientID: cfg.ClientID, TLS: cfg.TLS, SASL: cfg.SASL,
		MetadataTTL:    time.Second, // kafka-go asks for new leaders only that often, whatever error it gets
		MetadataTopics: topics,
	}}
}

// sizes looks topics up, each by itself. missing has those that cannot be read, and why.
func (c *client) sizes(ctx context.Context, topics []string) (found sizes, missing map[string]error, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*netTimeout)
	defer cancel()
	res, err := c.kafka().Metadata(ctx, &kafka.MetadataRequest{Topics: topics})
	if err != nil {
		return nil, nil, fmt.Errorf("metadata: %w", err)
	}
	found, missing = sizes{}, map[string]error{}
	for _, t := range res.Topics {
		if n := len(t.Partitions); n > 0 {
			found[t.Name] = n
		} else {
			missing[t.Name] = t.Error
		}
	}
	return found, missing, nil
}

// fetch asks the leader of a partition once. What is the same for all requests is filled in.
func (c *client) fetch(ctx context.Context, cfg *Config, req *fetchRequest) (*fetchResponse, error) {
	req.clientID, req.maxWait = cfg.ClientID, cfg.FetchWait
	req.responseLimit = max(cfg.FetchBytes, cfg.MaxBatchBytes) + 1<<20
	res, err := c.transport.RoundTrip(ctx, c.addr, req)
	if err != nil {
		return nil, err
	}
	answer := res.(*fetchResponse)
	if answer.errorCode != 0 {
		return nil, kafka.Error(answer.errorCode)
	}
	return answer, nil
}

func (c *client) kafka() *kafka.Client { return &kafka.Client{Addr: c.addr, Transport: c.transport} }

func (c *client) close() {
	c.transport.CloseIdleConnections()
	c.conns.shutdown()
}
