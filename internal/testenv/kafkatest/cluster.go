package kafkatest

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/effectonce/effectonce/internal/testenv/child"
)

// Cluster is a Kafka cluster for tests that stop, kill or pause brokers, which are numbered from 0. With three or more
// brokers the first three are the controller quorum, so any one may be down; with fewer, broker 0 is the only
// controller. Topics have up to three replicas, and min.insync.replicas is one less. It is not safe for concurrent use.
type Cluster struct {
	nodes  []*node
	remove func()
}

// NewCluster starts a cluster. The end of the test removes it. Without a real Kafka it skips the test.
func NewCluster(t testing.TB, brokers int) *Cluster {
	t.Helper()
	return newCluster(t, brokers, nil)
}

// NewOther is NewCluster with another cluster id than that of all others.
func NewOther(t testing.TB, brokers int) *Cluster {
	t.Helper()
	return newCluster(t, brokers, func(n *node) error { n.cluster = "b3RoZXItdGVzdC1jbHVzdA"; return nil })
}

func newCluster(t testing.TB, brokers int, prepare func(n *node) error) *Cluster {
	t.Helper()
	RequireReal(t)
	libs, err := Libs()
	if err != nil {
		t.Fatalf("kafkatest: %v", err)
	}
	c, err := startCluster(libs, brokers, prepare)
	if err != nil {
		t.Fatalf("kafkatest: %v", err)
	}
	c.closeAfter(t)
	return c
}

// closeAfter closes the cluster at the end of the test, which shows the brokers' logs if it has failed.
func (c *Cluster) closeAfter(t testing.TB) {
	t.Helper()
	t.Cleanup(c.Close)
	for _, n := range c.nodes {
		child.ShowLog(t, "broker "+strconv.Itoa(n.id-1), n.log())
	}
}

// Brokers returns all addresses, also of brokers that are down. Restarts keep them.
func (c *Cluster) Brokers() []string {
	addrs := make([]string, len(c.nodes))
	for i, n := range c.nodes {
		addrs[i] = n.addr()
	}
	return addrs
}

// Kill sends SIGKILL to broker i.
func (c *Cluster) Kill(i int) { c.nodes[i].stop(syscall.SIGKILL) }

// Stop shuts broker i down; it first hands its partitions over.
func (c *Cluster) Stop(i int) { c.nodes[i].stop(syscall.SIGTERM) }

// Start starts broker i again and waits until it answers.
func (c *Cluster) Start(t testing.TB, i int) {
	t.Helper()
	if err := c.nodes[i].start(); err != nil {
		t.Fatalf("kafkatest: %v", err)
	}
	if err := c.awaitReady(c.nodes[i]); err != nil {
		t.Fatalf("kafkatest: %v", err)
	}
}

// TryStart is Start with an error. It may be called again if the broker does not answer in time.
func (c *Cluster) TryStart(i int) error {
	n := c.nodes[i]
	if n.process != nil {
		select {
		case <-n.process.Done():
			n.process = nil
		default:
		}
	}
	if n.process == nil {
		if err := n.start(); err != nil {
			return err
		}
	}
	return c.awaitReady(n)
}

// Pause pauses broker i (SIGSTOP). Its connections stay open without answers.
func (c *Cluster) Pause(t testing.TB, i int) { c.signal(t, i, child.Pause) }

// Resume ends a Pause.
func (c *Cluster) Resume(t testing.TB, i int) { c.signal(t, i, child.Resume) }

func (c *Cluster) signal(t testing.TB, i int, sig syscall.Signal) {
	t.Helper()
	if err := c.Signal(i, sig); err != nil {
		t.Fatalf("kafkatest: %v", err)
	}
}

// Signal sends a signal to broker i.
func (c *Cluster) Signal(i int, sig syscall.Signal) error {
	if c.nodes[i].process == nil {
		return fmt.Errorf("broker %d is not running", i)
	}
	return c.nodes[i].process.Signal(sig)
}

// Close ends the brokers and removes their data.
func (c *Cluster) Close() {
	for _, n := range c.nodes {
		n.stop(syscall.SIGKILL) // the data is removed, too
	}
	c.remove()
}

// startCluster starts a cluster. prepare, if not nil, is called for each broker before it is configured.
func startCluster(libs string, brokers int, prepare func(n *node) error) (*Cluster, error) {
	var err error
	// Another process may take a free port first. Then the broker ends at once; try other ports.
	for range 3 {
		var c *Cluster
		if c, err = tryCluster(libs, brokers, prepare); !errors.Is(err, errEnded) {
			return c, err
		}
	}
	return nil, err
}

var errEnded = errors.New("the broker has ended")

func tryCluster(libs string, brokers int, prepare func(n *node) error) (*Cluster, error) {
	dir, remove, err := child.TempDir("kafka")
	if err != nil {
		return nil, err
	}
	c := &Cluster{remove: remove}
	for i := range brokers {
		n := &node{id: i + 1, libs: libs, dir: filepath.Join(dir, fmt.Sprint(i))}
		var err1, err2, err3 error
		n.port, err1 = child.FreePort()
		n.controller, err2 = child.FreePort()
		if prepare != nil {
			err3 = prepare(n)
		}
		if err := errors.Join(err1, err2, err3); err != nil {
			remove()
			return nil, err
		}
		c.nodes = append(c.nodes, n)
	}
	voters := c.nodes[:1]
	if brokers >= 3 {
		voters = c.nodes[:3]
	}
	if err := c.boot(voters); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

func (c *Cluster) boot(voters []*node) error {
	errs := make([]error, len(c.nodes))
	var wg sync.WaitGroup
	for i, n := range c.nodes {
		wg.Go(func() {
			if errs[i] = n.format(voters, len(c.nodes)); errs[i] == nil {
				errs[i] = n.start()
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for _, n := range c.nodes {
		if err := c.awaitReady(n); err != nil {
			return err
		}
	}
	return nil
}

// awaitReady waits until n answers and the cluster lists it. Beside other starts on a busy machine that takes minutes;
// a broker that cannot start ends.
func (c *Cluster) awaitReady(n *node) error {
	ctx, cancel := context.WithTimeout(context.Background(), 9*time.Minute)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := checkListed(ctx, n)
		if err == nil {
			return nil
		}
		select {
		case <-n.process.Done():
			return fmt.Errorf("broker %d: %w:\n%s", n.id, errEnded, n.process.LogTail())
		case <-ctx.Done():
			return fmt.Errorf("broker %d does not answer: %w\n%s", n.id, err, n.process.LogTail())
		case <-tick.C:
		}
	}
}

func checkListed(ctx context.Context, n *node) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(n.addr()), kgo.RequestRetries(0), kgo.RetryTimeout(time.Second),
		kgo.DialTimeout(5*time.Second))
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	resp, err := kmsg.NewPtrMetadataRequest().RequestWith(ctx, client)
	if err != nil {
		return err
	}
	for _, b := range resp.Brokers {
		if b.NodeID == int32(n.id) && resp.ControllerID >= 0 {
			return nil
		}
	}
	return errors.New("the cluster does not list the broker")
}
