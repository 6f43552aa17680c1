package secret

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// commandTimeout bounds a command.
const commandTimeout = 10 * time.Second

// Command is a Value of ByCommand, for a flag.
type Command struct{ Value }

// UnmarshalText sets the Value as ByCommand does; an empty text sets the zero Value.
func (c *Command) UnmarshalText(line []byte) error {
	*c = Command{}
	if len(line) > 0 {
		c.Value = ByCommand(string(line))
	}
	return nil
}

// ByCommand makes a Value that a shell command prints at each Reveal, such as a token of a cloud's identity service. A
// newline at the end is removed. A command that prints a JSON object instead,
//
//	{"password": "...", "expires": "2026-01-02T15:04:05Z"}
//
// runs again a minute before the secret expires. A command is killed after ten seconds, with its process group. Its
// standard error is discarded, and errors contain neither the command nor its output.
func ByCommand(line string) Value {
	c := command{line: line, timeout: commandTimeout}
	return Value{c.reveal}
}

type command struct {
	line    string
	timeout time.Duration

	mu    sync.Mutex // one run at a time: concurrent connections share a secret that expires
	text  string
	until time.Time
}

func (c *command) reveal() (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Now().Before(c.until) {
		return c.text, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), c.timeout)
	defer cancel()
	cmd := shell(ctx, c.line)
	cmd.WaitDelay = time.Second // a process that escaped the kill may hold the output open
	out, err := cmd.Output()
	if err != nil && ctx.Err() != nil {
		return "", fmt.Errorf("the command that prints it took more than %v and was killed", c.timeout)
	}
	if err != nil {
		exit := "it was not started"
		if e := (*exec.ExitError)(nil); errors.As(err, &e) {
			exit = e.ProcessState.String()
		}
		return "", fmt.Errorf("the command that prints it failed (%s): run it by hand to see why", exit)
	}
	return c.take(out)
}

// take parses the output of the command.
func (c *command) take(out []byte) (string, error) {
	text, until := strings.TrimRight(string(out), "\r\n"), time.Time{}
	if bytes.HasPrefix(out, []byte("{")) {
		var printed struct {
			Password string    `json:"password"`
			Expires  time.Time `json:"expires"`
		}
		if json.Unmarshal(out, &printed) != nil {
			return "", errors.New(`the command that prints it printed no {"password": "...", "expires": "2026-01-02T15:04:05Z"}`)
		}
		text, until = printed.Password, printed.Expires.Add(-time.Minute)
	}
	if text == "" {
		return "", errors.New("the command that prints it printed nothing")
	}
	c.text, c.until = text, until
	return text, nil
}
