//go:build unix

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"html"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/effectonce/effectonce/cmd/devstack"
	"github.com/effectonce/effectonce/internal/testenv/child"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

// envMain makes this test binary the program itself.
const envMain = "EFFECTONCE_RELAY_DEV_TEST_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(envMain) != "" {
		main()
	}
	pgtest.Main(m)
}

// running is a relay-dev of its own.
type running struct {
	*exec.Cmd
	t    *testing.T
	out  *output
	done chan struct{} // closed when it has ended
}

// output is what a process writes, readable while it runs.
type output struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.all.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.all.String()
}

// folder is one that the account of Postgres can get to.
func folder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "effectonce-relay-dev-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func start(t *testing.T, dir string, args ...string) *running {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &running{
		Cmd: exec.Command(self, append([]string{"--dir=" + dir}, args...)...), t: t,
		out: &output{}, done: make(chan struct{}),
	}
	p.Env = append(os.Environ(), envMain+"=1", "EFFECTONCE_DEV_LISTEN=127.0.0.1:0")
	p.Stdout, p.Stderr = p.out, p.out
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { _ = p.Wait(); close(p.done) }()
	t.Cleanup(func() { _ = p.Process.Kill(); <-p.done })
	return p
}

// find waits for a line, and returns what it has in parentheses.
func (p *running) find(line string) (found string) {
	p.t.Helper()
	pattern := regexp.MustCompile(line)
	pgtest.Await(p.t, line, func() (bool, error) {
		if m := pattern.FindStringSubmatch(p.out.String()); m != nil {
			found = m[len(m)-1]
			return true, nil
		}
		select {
		case <-p.done:
			if strings.Contains(p.out.String(), "downloading Postgres") {
				p.t.Skipf("Postgres cannot be fetched here:\n%s", p.out)
			}
			return false, fmt.Errorf("it has ended: %s", p.out)
		default:
			return false, nil
		}
	})
	return found
}

var tags = regexp.MustCompile(`(?s)<[^>]*>`)

// page is the text of a page.
func (p *running) page(path string) (string, error) {
	body, err := get(strings.TrimSuffix(p.find(`the pages +(http\S+)`), "/") + path)
	return strings.Join(strings.Fields(html.UnescapeString(tags.ReplaceAllString(body, " "))), " "), err
}

// examined is page. The overview is one that the doctor has looked at just now; by itself it does so every 15 seconds.
func (p *running) examined(path string) (string, error) {
	if path == "/" {
		if _, err := p.page("/doctor/examine"); err != nil {
			return "", err
		}
	}
	return p.page(path)
}

// shows waits until a page says all of it.
func (p *running) shows(path string, wants ...string) {
	p.t.Helper()
	var missing, text string
	defer func() {
		if p.t.Failed() {
			p.t.Logf("%s does not say %q:\n%s\n%s", path, missing, text, p.out)
		}
	}()
	pgtest.Await(p.t, "what "+path+" shows", func() (_ bool, err error) {
		if text, err = p.examined(path); err != nil {
			return false, err
		}
		for _, want := range wants {
			if !regexp.MustCompile(want).MatchString(text) {
				missing = want
				return false, nil
			}
		}
		return true, nil
	})
}

// cluster is that of Kafka, as the doctor names it.
func (p *running) cluster() (id string) {
	p.t.Helper()
	pgtest.Await(p.t, "the doctor has asked Kafka", func() (bool, error) {
		text, err := p.examined("/")
		if m := regexp.MustCompile(`3 brokers answer, of cluster (\S+)`).FindStringSubmatch(text); m != nil {
			id = m[1]
		}
		return id != "", err
	})
	return id
}

// interrupt ends it as Ctrl-C does, and sees that nothing is left of it.
func (p *running) interrupt(dir string) {
	p.t.Helper()
	pids := child.Below(p.Process.Pid)
	if runtime.GOOS == "linux" && len(pids) == 0 {
		p.t.Error("Postgres runs as no child of it")
	}
	if err := p.Process.Signal(os.Interrupt); err != nil {
		p.t.Fatal(err)
	}
	<-p.done
	if code := p.ProcessState.ExitCode(); code != 0 {
		p.t.Errorf("exit code %d: %s", code, p.out)
	}
	for _, left := range pids.Left() {
		p.t.Error(left)
	}
	if _, err := os.Stat(filepath.Join(dir, "postgres", "data", "postmaster.pid")); !errors.Is(err, os.ErrNotExist) {
		p.t.Errorf("Postgres has left its lock: %v", err)
	}
	_, unlock, err := devstack.Folder(dir)
	if err != nil {
		p.t.Fatalf("the folder is still taken: %v", err)
	}
	unlock()
}

// TestSeed: each trouble stands on the pages; a key is mended there; an interrupt leaves nothing behind, and the next
// start goes on with what was.
func TestSeed(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	p := start(t, dir, "--seed")
	p.find(`The shop has trouble to look at`)
	p.shows("/", "Something is wrong", `returns`, `newsletter \(shop: the mail provider asks us to wait\), 20 events`,
		`shipments`, `1 partition halted`, `Refused 3 events`, `1 in quarantine`)
	p.shows("/keys", `invoices acme parked MESSAGE_TOO_LARGE`, `billing orders `+badCustomer+` parked no_account`)
	p.shows("/consumers", `billing`, `warehouse`, `negative_stock`)
	p.find(`(?m)orders/\d@\d+ +customer-\d+ +OrderPlaced +\d+ B  [0-9a-f-]{36}$`)
	cluster := p.cluster()
	url, brokers := p.find(`DATABASE_URL='(\S+)'`), p.find(`KAFKA_BROKERS=(\S+)`)

	// Who tries to use the folder at the same time is told.
	second := start(t, dir)
	<-second.done
	if code := second.ProcessState.ExitCode(); code != 2 || !strings.Contains(second.out.String(), "runs already") {
		t.Errorf("a second one: exit code %d: %s", code, second.out)
	}
	p.interrupt(dir)

	p = start(t, dir, "--topics=mine")
	if got := p.find(`DATABASE_URL='(\S+)'`); password(got) != password(url) {
		t.Errorf("the password is another one than before")
	}
	// The broker may have to take another port on a machine with several of these.
	if got := p.find(`KAFKA_BROKERS=(\S+)`); got != brokers {
		t.Logf("Kafka is at %s, and was at %s", got, brokers)
	}
	p.shows("/keys", `invoices acme parked MESSAGE_TOO_LARGE`)
	p.shows("/", `newsletter \(shop`, `1 partition halted`)
	if got := p.cluster(); got != cluster {
		t.Errorf("Kafka is the cluster %s, and was %s", got, cluster)
	}
	topicsOf(t, p.find(`KAFKA_BROKERS=(\S+)`), "mine", "orders", "stock")
	p.runShown(cluster)
	p.interrupt(dir)
}

// shownCommands are those of the pages that links lead to; of what differs by values alone, one.
func (p *running) shownCommands() (list []string) {
	p.t.Helper()
	link := regexp.MustCompile(`<a [^>]*href="(/[^"#]*)`)
	command := regexp.MustCompile(`(?s)<div class="command"><code>(.*?)</code>`)
	values := regexp.MustCompile(`=(?:'[^']*'|[^ &]+)|/\d+|/topic/[^?]+`)
	at, known := strings.TrimSuffix(p.find(`the pages +(http\S+)`), "/"), map[string]int{}
	isNew := func(kind string, most int) bool { known[kind]++; return known[kind] <= most }
	plan := "/db/dev/replay/plan?topic=orders&key=customer-1&from=2020-01-01" // a form leads there
	paths := []string{"/doctor/examine", "/", plan}
	for i := 0; i < len(paths); i++ {
		body, err := get(at + paths[i])
		if err != nil {
			p.t.Fatal(err)
		}
		for _, m := range link.FindAllStringSubmatch(body, -1) {
			to := html.UnescapeString(m[1])
			if !slices.Contains(paths, to) && isNew(values.ReplaceAllString(to, ""), 6) {
				paths = append(paths, to)
			}
		}
		for _, m := range command.FindAllStringSubmatch(body, -1) {
			if line := html.UnescapeString(m[1]); isNew(values.ReplaceAllString(line, ""), 1) {
				list = append(list, line)
			}
		}
	}
	return list
}

// runShown runs the commands of the pages as they stand, in the shell of a developer. One with a placeholder says what
// is missing; with that filled in it runs, too.
func (p *running) runShown(cluster string) {
	p.t.Helper()
	bin := p.t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(bin, name), []byte(text), 0o755); err != nil {
			p.t.Fatal(err)
		}
	}
	if out, err := exec.Command("go", "build", "-o", bin, "../relay").CombinedOutput(); err != nil {
		p.t.Fatalf("%v: %s", err, out)
	}
	for _, tool := range []string{"topics", "configs", "consumer-groups"} { // in place of Kafka's own
		write("kafka-"+tool+".sh", `[[ "$1 $2" == "--bootstrap-server `+p.find(`KAFKA_BROKERS=(\S+)`)+`" ]] || exit 2`)
	}
	for _, name := range []string{"new.bin", "answer.json"} {
		write(name, "{}")
	}
	run := func(line string) (int, string) {
		cmd := exec.Command("bash", "-c", line)
		cmd.Dir, cmd.Env = bin, []string{"PATH=" + bin + ":" + os.Getenv("PATH"), "USER=ann"}
		out, err := cmd.CombinedOutput()
		if _, ended := errors.AsType[*exec.ExitError](err); err != nil && !ended {
			p.t.Fatal(err)
		}
		return cmd.ProcessState.ExitCode(), string(out)
	}
	missing := regexp.MustCompile(`--([a-z-]+)[= ]"?(?:\.\.\.|\$\{[A-Z]+:\?\})"?`)
	fill := map[string]string{"reason": "a test", "to": "offset", "cluster": cluster, "partitions": "1"}
	ran := map[string]int{}
	for _, line := range p.shownCommands() {
		if placeholders := missing.FindAllStringSubmatch(line, -1); placeholders != nil {
			code, out := run(line)
			said := false
			for _, m := range placeholders {
				said = said || strings.Contains(strings.ToLower(out), m[1])
				line = strings.Replace(line, m[0], "--"+m[1]+" '"+fill[m[1]]+"'", 1)
			}
			if code != 2 && code != 127 || !said {
				p.t.Errorf("exit code %d does not say what is missing: %s\n%s", code, line, out)
			}
		}
		code, out := run(line)
		if code != 0 && code != 1 && code != 6 {
			p.t.Errorf("exit code %d: %s\n%s", code, line, out)
		}
		ran[strings.Fields(line)[0]]++
	}
	if ran["relay"] < 30 || ran["kafka-topics.sh"] == 0 || ran["kafka-consumer-groups.sh"] == 0 {
		p.t.Errorf("ran only %v", ran)
	}
}

func get(url string) (string, error) {
	resp, err := http.Get(url)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", url, resp.Status)
	}
	return string(body), err
}

func password(url string) string {
	_, rest, _ := strings.Cut(url, "postgres:")
	word, _, _ := strings.Cut(rest, "@")
	return word
}

// topicsOf reads as a service of a developer would: what the topics hold is still there.
func topicsOf(t *testing.T, brokers, empty string, filled ...string) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(brokers, ",")...),
		kgo.ConsumeTopics(append(filled, empty)...))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	seen := map[string]bool{}
	pgtest.Await(t, "records of each topic", func() (bool, error) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		fetches := client.PollFetches(ctx)
		fetches.EachRecord(func(r *kgo.Record) { seen[r.Topic] = true })
		for _, topic := range filled {
			if !seen[topic] {
				return false, nil
			}
		}
		return true, nil
	})
	if seen[empty] {
		t.Errorf("topic %s is not new", empty)
	}
}

// TestListen: the pages take another port where theirs is taken, except where --listen names it.
func TestListen(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", pagesAddress)
	if err == nil {
		defer func() { _ = l.Close() }()
	} // else another program has it
	dir := folder(t)
	p := start(t, dir, "--listen=") // as without the flag
	p.shows("/", "Nothing waits")
	p.interrupt(dir)
	var errs bytes.Buffer
	code := command(t.Context(), []string{"--listen=" + pagesAddress, "--dir=" + dir}, io.Discard, &errs)
	if want := "leave --listen out"; code != 2 || !strings.Contains(errs.String(), want) {
		t.Errorf("exit code %d, without %q: %s", code, want, &errs)
	}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	for args, says := range map[string]string{
		"--listen=0.0.0.0:1": "for this machine only", "--listen=9188": "want host:port", "--nonsense": "unknown flag",
		"--dir=/dev/null/x": "--dir",
	} {
		var out, errs bytes.Buffer
		code := command(t.Context(), []string{args}, &out, &errs)
		if code != 2 || !strings.Contains(errs.String(), says) {
			t.Errorf("%s: exit code %d: %s", args, code, &errs)
		}
	}
}
