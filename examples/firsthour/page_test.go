package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/effectonce/effectonce/internal/testenv/child"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/process"
	"github.com/effectonce/effectonce/publisher"
	"github.com/effectonce/effectonce/relay"
)

// TestMain gives the tests this repository's Postgres, unless DATABASE_URL names one.
func TestMain(m *testing.M) {
	if os.Getenv("DATABASE_URL") == "" {
		env, err := pgtest.Environ()
		if err == nil {
			_, url, _ := strings.Cut(env[0], "=")
			err = os.Setenv("DATABASE_URL", url)
		}
		if err != nil {
			panic(err)
		}
	}
	pgtest.Main(m, kafkatest.Stop)
}

const page = "../../docs/first-hour.md"

func readFile(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// block is a block of code of the page.
type block struct{ language, text string }

func blocks(t *testing.T) (all []block) {
	t.Helper()
	for _, m := range regexp.MustCompile("(?ms)^```(\\w+)\n(.*?)\n```$").FindAllStringSubmatch(readFile(t, page), -1) {
		all = append(all, block{m[1], m[2]})
	}
	return all
}

// TestPageShowsThisCode: the page's Go, SQL and alert are those of the files.
func TestPageShowsThisCode(t *testing.T) {
	t.Parallel()
	sources := map[string]string{
		"go":   readFile(t, "main.go") + readFile(t, "main_test.go"),
		"sql":  readFile(t, "schema.sql"),
		"yaml": strings.ReplaceAll(readFile(t, "../../deploy/prometheus/alerts.yml"), "\n      ", "\n"),
	}
	shown := map[string]int{}
	for _, b := range blocks(t) {
		source, known := sources[b.language]
		if !known {
			continue
		}
		shown[b.language]++
		if !strings.Contains(source, "\n"+b.text+"\n") && !strings.HasPrefix(source, b.text+"\n") {
			t.Errorf("no file has this %s of %s:\n%s", b.language, page, b.text)
		}
	}
	if shown["go"] < 6 || shown["sql"] != 1 || shown["yaml"] != 1 {
		t.Errorf("the page shows %v", shown)
	}
}

// TestPageRuns runs the page's commands in order, until each shows what the page says. With EFFECTONCE_FIRST_HOUR=1
// they all run as they stand there, on relay-dev, which takes the ports 8080 and 9188; the repository is not cloned.
// Otherwise the servers are those of tests, and go and bin/relay are not run.
func TestPageRuns(t *testing.T) {
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("needs curl")
	}
	h := hour{T: t, real: os.Getenv("EFFECTONCE_FIRST_HOUR") != "", env: os.Environ()}
	if !h.real {
		h.serve()
	}
	ran := 0
	all := blocks(t)
	for i := range all {
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
	if ran < 4 || h.real && ran < 14 {
		t.Errorf("ran %d commands", ran)
	}
}

// hour is somebody's.
type hour struct {
	*testing.T
	real    bool
	env     []string
	address string // of the program
}

// serve starts what the page starts in its first two terminals.
func (h *hour) serve() {
	db, topic, brokers := pgtest.New(h.T), kafkatest.Topic(h.T, 6), kafkatest.Brokers(h.T)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		h.Fatal(err)
	}
	h.address = listener.Addr().String()
	if err := prepare(h.Context(), db.Pool); err != nil {
		h.Fatal(err)
	}
	kafka, err := publisher.NewKafka(brokers, publisher.Config{})
	if err != nil {
		h.Fatal(err)
	}
	publish, err := relay.New(db.Pool, kafka, relay.Config{})
	if err != nil {
		h.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(h.Context()))
	done := make(chan error, 2)
	go func() { done <- publish.Run(ctx) }()
	go func() { done <- run(ctx, db.Pool, process.Kafka{Brokers: brokers}, topic, listener) }()
	h.Cleanup(func() {
		cancel()
		for range cap(done) {
			if err := <-done; err != nil {
				h.Error(err)
			}
		}
		kafka.Close()
	})
}

// run runs a line until it shows something, and returns how many commands that were.
func (h *hour) run(line, shows string) int {
	switch {
	case strings.HasPrefix(line, "git clone "), strings.HasPrefix(line, "cd "):
		return 0
	case strings.HasPrefix(line, "export "):
		name, value, _ := strings.Cut(strings.TrimPrefix(line, "export "), "=")
		h.env = append(h.env, name+"="+h.expand(value))
		return 0
	case !h.real && !strings.HasPrefix(line, "curl "), !h.real && strings.Contains(line, "acc-2"),
		!h.real && strings.Contains(line, "/metrics"):
		return 0 // without relay and without waiting for the next figures
	case strings.HasPrefix(line, "go run "):
		h.start(line)
		return 1
	}
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
	c := exec.Command("bash", "-c", line)
	c.Dir, c.Env = "../..", h.env
	return c
}

// pattern matches what the page shows: ... stands for anything.
func pattern(shows string) *regexp.Regexp {
	text := regexp.MustCompile(`\s+`).ReplaceAllString(regexp.QuoteMeta(strings.TrimSpace(shows)), `\s+`)
	return regexp.MustCompile(strings.ReplaceAll(text, `\.\.\.`, `\S*`))
}

// start starts a server as go run does, and takes over the variables that it prints.
func (h *hour) start(line string) {
	args := strings.Fields(strings.TrimPrefix(line, "go run "))
	if strings.Contains(line, "relay-dev") {
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
	if !strings.Contains(line, "relay-dev") {
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
			h.env = append(h.env, m[1]+"="+m[2])
		}
		return len(found) == 2, nil
	})
}
