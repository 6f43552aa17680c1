package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/effectonce/effectonce/cmd/devstack"
	"github.com/effectonce/effectonce/internal/testenv/child"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/publisher"
	"github.com/effectonce/effectonce/relay"
)

const page = "../../docs/first-hour.md"

func readFile(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// block is a block of code of the page, with the prose before it.
type block struct{ before, language, text string }

func blocks(t *testing.T) (all []block) {
	t.Helper()
	fenced := regexp.MustCompile("(?ms)(.*?)^```(\\w+)\n(.*?)\n```$")
	for _, m := range fenced.FindAllStringSubmatch(readFile(t, page), -1) {
		all = append(all, block{m[1], m[2], m[3]})
	}
	return all
}

// TestPageShowsThisCode: the page's Go is what init writes.
func TestPageShowsThisCode(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "shop")
	if err := (initFlags{}).copy(dir); err != nil {
		t.Fatal(err)
	}
	written, shown := readFile(t, filepath.Join(dir, "effect.go"))+readFile(t, filepath.Join(dir, "payment.go")), 0
	for _, b := range blocks(t) {
		if b.language != "go" {
			continue
		}
		shown++
		if !strings.Contains(written, "\n"+b.text+"\n") {
			t.Errorf("init writes no such Go as %s has:\n%s", page, b.text)
		}
	}
	if shown < 2 {
		t.Errorf("the page shows %d blocks of Go", shown)
	}
}

// TestPageRuns runs the page's commands in order, until each shows what the page says, each in the terminal that the
// page names. With EFFECTONCE_FIRST_HOUR=1 they all run as they stand there, on a relay-dev with the ports 8080 and
// 9188; the repository is not cloned. Otherwise the servers are those of tests, and of the commands only curl is run.
func TestPageRuns(t *testing.T) {
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("needs curl")
	}
	h := hour{T: t, real: os.Getenv("EFFECTONCE_FIRST_HOUR") != "", terminals: map[string]*terminal{}}
	for _, name := range []string{"first", "second", "third"} {
		h.terminals[name] = &terminal{dir: "../.."}
	}
	h.terminal = h.terminals["first"]
	if h.real {
		h.shop = filepath.Join(t.TempDir(), "shop")
		cache, err := exec.Command("go", "env", "GOMODCACHE").Output()
		if err != nil {
			t.Fatal(err)
		}
		// What the service requires is here already, and checked by this repository's go.sum.
		h.common = append(h.common, "GOSUMDB=off", "GOPROXY=file://"+strings.TrimSpace(string(cache))+"/cache/download")
	} else {
		h.serve()
	}
	ran := 0
	all := blocks(t)
	for i := range all {
		h.reads(all[i].before)
		if all[i].language != "sh" {
			continue
		}
		shows := ""
		if i+1 < len(all) && all[i+1].language == "text" {
			shows = all[i+1].text
		}
		lines := strings.Split(all[i].text, "\n")
		last := len(lines) - 1
		for _, line := range lines[:last] {
			ran += h.run(line, "")
		}
		ran += h.run(lines[last], shows)
	}
	if h.real { // what the page changed has left the service's tests well
		h.terminal = h.terminals["second"]
		ran += h.run("go test ./...", "")
	}
	if ran < 3 || h.real && ran < 18 {
		t.Errorf("ran %d commands", ran)
	}
}

// terminal has only the variables that were exported in it.
type terminal struct {
	env []string
	dir string
}

// hour is somebody's.
type hour struct {
	*testing.T
	real bool
	*terminal
	terminals map[string]*terminal
	common    []string // variables of this machine
	exported  []string // what relay-dev has printed
	shop      string   // what init makes
	program   *child.Process
	address   string // of the program
}

// serve starts what the page starts in its first two terminals.
func (h *hour) serve() {
	db := pgtest.New(h.T)
	if err := migrations.Up(h.Context(), db.Pool.Config().ConnConfig, migrations.Options{}); err != nil {
		h.Fatal(err)
	}
	brokers, err := devstack.StartKafka(devstack.Config{})
	if err != nil {
		h.Fatal(err)
	}
	h.Cleanup(brokers.Close)
	kafkatest.CreateTopic(h.T, brokers.Brokers(), "payments", 6)
	port, err := child.FreePort()
	if err != nil {
		h.Fatal(err)
	}
	h.address = fmt.Sprintf("127.0.0.1:%d", port)
	h.exported = []string{"DATABASE_URL=" + db.URL, "KAFKA_BROKERS=" + strings.Join(brokers.Brokers(), ",")}
	h.terminal = &terminal{dir: ".", env: append([]string{"LISTEN=" + h.address}, h.exported...)}
	h.start("go run ./starter")
	kafka, err := publisher.NewKafka(brokers.Brokers(), publisher.Config{})
	if err != nil {
		h.Fatal(err)
	}
	publish, err := relay.New(db.Pool, kafka, relay.Config{})
	if err != nil {
		h.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(h.Context()))
	done := make(chan error, 1)
	go func() { done <- publish.Run(ctx) }()
	h.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			h.Error(err)
		}
		kafka.Close()
	})
}

var (
	inTerminal  = regexp.MustCompile(`(?i)\bin (?:the|a) (second|third)\s+terminal`)
	pasteExport = regexp.MustCompile("paste\\s+the\\s+(?:two\\s+)?`export`\\s+lines")
)

// reads turns to the terminal that the text names, and pastes there what relay-dev has printed.
func (h *hour) reads(text string) {
	if m := inTerminal.FindAllStringSubmatch(text, -1); m != nil {
		h.terminal = h.terminals[m[len(m)-1][1]]
	}
	if pasteExport.MatchString(text) {
		h.env = append(h.env, h.exported...)
	}
}

// run runs a line until it shows something, and returns how many commands that were.
func (h *hour) run(line, shows string) int {
	switch {
	case strings.HasPrefix(line, "git clone "), line == "cd effectonce":
		return 0
	case strings.HasPrefix(line, "export "):
		name, value, _ := strings.Cut(strings.TrimPrefix(line, "export "), "=")
		h.env = append(h.env, name+"="+h.expand(value))
		return 0
	case !h.real && (!strings.HasPrefix(line, "curl ") || strings.Contains(line, "acc-2")),
		!h.real && strings.Contains(line, "/metrics"):
		return 0 // without relay and without waiting for the next figures
	case strings.HasPrefix(line, "cd ../shop"):
		h.dir = h.shop
		return 0
	case strings.HasPrefix(line, "go run ") && !strings.Contains(line, " init "):
		h.start(line)
		return 1
	}
	line = strings.ReplaceAll(line, "../shop", h.shop)
	if h.address != "" {
		line = strings.ReplaceAll(line, "localhost:8080", h.address)
	}
	var out []byte
	defer func() {
		if h.Failed() {
			h.Logf("%s\n%s", line, out)
		}
	}()
	want := pattern(shows)
	pgtest.Await(h.T, line+" shows "+shows, func() (ok bool, err error) {
		out, err = h.command(line).CombinedOutput()
		if strings.HasPrefix(line, "go ") {
			return want.Match(out), err
		}
		// The servers are starting; who gets TRY_AGAIN repeats the request.
		return err == nil && want.Match(out) && !strings.Contains(string(out), "TRY_AGAIN"), nil
	})
	return 1
}

func (h *hour) expand(value string) string {
	out, err := h.command("printf %s " + value).Output()
	if err != nil {
		h.Fatal(err)
	}
	return string(out)
}

func (h *hour) command(line string) *exec.Cmd {
	c := exec.Command("bash", "-uc", line) // a variable that is not set is an error
	c.Dir = h.dir
	for _, v := range slices.Concat(os.Environ(), h.common) {
		if name, _, _ := strings.Cut(v, "="); name != "DATABASE_URL" && name != "KAFKA_BROKERS" {
			c.Env = append(c.Env, v)
		}
	}
	c.Env = append(c.Env, h.env...)
	return c
}

// pattern matches what the page shows: ... stands for anything.
func pattern(shows string) *regexp.Regexp {
	text := regexp.MustCompile(`\s+`).ReplaceAllString(regexp.QuoteMeta(strings.TrimSpace(shows)), `\s+`)
	return regexp.MustCompile(strings.ReplaceAll(text, `\.\.\.`, `.*?`))
}

// start starts a server as go run does, and takes over the variables that it prints.
func (h *hour) start(line string) {
	args := strings.Fields(strings.TrimPrefix(line, "go run "))
	own := !strings.Contains(line, "relay-dev")
	if own && h.program != nil {
		h.program.Stop(os.Interrupt, time.Minute)
	}
	if !own {
		dir, remove, err := child.TempDir("dev") // the user's has what an earlier run left
		if err != nil {
			h.Fatal(err)
		}
		h.Cleanup(remove)
		if err := os.Chmod(dir, 0o711); err != nil { // root's Postgres runs as another account
			h.Fatal(err)
		}
		args = append(args, "--dir="+filepath.Join(dir, "data"))
	}
	program := filepath.Join(h.TempDir(), "program")
	if out, err := h.command("go build -o " + program + " " + args[0]).CombinedOutput(); err != nil {
		h.Fatalf("%s: %v: %s", line, err, out)
	}
	cmd := h.command("exec " + program + " " + strings.Join(args[1:], " "))
	log := program + ".log"
	p, err := child.Start(cmd, log, syscall.SIGTERM)
	if err != nil {
		h.Fatal(err)
	}
	h.Cleanup(func() { p.Stop(os.Interrupt, time.Minute) })
	if own {
		h.program = p
		return
	}
	exported := regexp.MustCompile(`export (\w+)='?([^'\s]+)`)
	pgtest.Await(h.T, "the variables of "+line, func() (bool, error) {
		select {
		case <-p.Done():
			return false, fmt.Errorf("it has ended: %s", p.LogTail())
		default:
		}
		found := exported.FindAllStringSubmatch(readFile(h.T, log), -1)
		for _, m := range found {
			h.exported = append(h.exported, m[1]+"="+m[2])
		}
		return len(found) == 2, nil
	})
}
