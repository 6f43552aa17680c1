package main

import (
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// onTerminal runs a command with a terminal of so many columns as stdout, and returns what the terminal was sent.
func onTerminal(t *testing.T, columns uint16, env environment, args ...string) string {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skip(err)
	}
	defer func() { _ = master.Close() }()
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	tty, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tty.Close() }()
	size := &unix.Winsize{Row: 24, Col: columns}
	if err := unix.IoctlSetWinsize(int(tty.Fd()), unix.TIOCSWINSZ, size); err != nil {
		t.Fatal(err)
	}
	var sent output
	read := make(chan struct{})
	go func() {
		defer close(read)
		_, _ = io.Copy(&sent, master) // ends when tty is closed
	}()
	var errs output
	run(t.Context(), args, env.get, tty, &errs)
	_ = tty.Close()
	<-read
	if sent.String() == "" {
		t.Fatalf("%v: %s", args, errs.String())
	}
	return strings.ReplaceAll(sent.String(), "\r\n", "\n")
}

var escape = regexp.MustCompile("\x1b\\[[0-9]+m")

// TestTerminal: a terminal gets what fits it, in colour unless that is declined; everything else gets all of it, plain.
func TestTerminal(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	env := settings(db, deadBroker).with("TERM", "xterm", "RELAY_KAFKA_BROKERS", "")
	reason := strings.Repeat("the mail provider asks us to wait, ", 4) + "please"
	pause := []string{"topics", "pause", "--topic", "newsletter", "--reason", reason}
	if code, _, stderr := command(t, env, pause...); code != codeOK {
		t.Fatal(stderr)
	}
	_, piped, _ := command(t, env, "topics", "list")
	if !strings.Contains(piped, reason+"\n") || strings.ContainsAny(piped, "…\x1b") ||
		!strings.HasPrefix(piped, "TOPIC        PARTITIONS   HELD") {
		t.Errorf("piped: %q", piped)
	}
	for _, c := range []struct {
		columns uint16
		args    string
		want    []string
	}{
		{70, "topics list", []string{"\x1b[1mTOPIC       PARTITIONS  HELD", "\nnewsletter  0           0     ", "…\n"}},
		{220, "topics list", []string{reason + "\n"}},
		{32, "topics list", []string{"\x1b[1mTOPIC ", "newsletter\n\x1b[1mPARTITIONS ", "…\n"}},
		{60, "status", []string{"\x1b[1mBACKLOG  OLDEST\x1b[0m\n0        -\n", "…"}},
		{72, "doctor", []string{"\n\x1b[32mok  \x1b[0m  ", "\x1b[31mfail\x1b[0m", "\n" + strings.Repeat(" ", 13)}},
		{100, "help incidents", []string{"`relay doctor` first. "}},
		{100, "topics list --help", []string{"[_FILE])"}},
	} {
		text := onTerminal(t, c.columns, env, strings.Fields(c.args)...)
		for _, want := range c.want {
			if !strings.Contains(text, want) {
				t.Errorf("%s, %d columns: no %q in\n%s", c.args, c.columns, want, text)
			}
		}
		for line := range strings.Lines(escape.ReplaceAllString(text, "")) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > int(c.columns) &&
				!strings.HasPrefix(strings.TrimSpace(line), "effectonce_") && // a neighbour's slot
				!strings.HasPrefix(line, "      run: ") {
				t.Errorf("%s: %d columns on a terminal of %d: %s", c.args, n, c.columns, line)
			}
		}
		for _, plain := range [][]string{{"NO_COLOR", "1"}, {"TERM", "dumb"}, {"TERM", ""}} {
			if got := onTerminal(t, 80, env.with(plain...), strings.Fields(c.args)...); strings.Contains(got, "\x1b") {
				t.Errorf("%s, %v: %q", c.args, plain, got)
			}
		}
	}
}
