package kafkatest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/effectonce/effectonce/internal/testenv/child"
	"github.com/effectonce/effectonce/internal/testenv/maven"
)

// DebeziumVersion is the version of Debezium's connector for Postgres.
const DebeziumVersion = "3.3.1.Final"

// connectTimeout bounds the start of Connect, also on a busy machine.
const connectTimeout = 3 * time.Minute

// ConnectConfig configures a [Connect].
type ConnectConfig struct {
	Brokers []string
	// Java are options of the virtual machine. Default: a small heap and a fast start.
	Java []string
	// Worker are lines of the worker's properties. They override the defaults: string converters for keys and values,
	// and a flush of offsets every second.
	Worker []string
}

// Connect is a Kafka Connect in standalone mode with Debezium's connector for Postgres. A restart loses its connectors
// and keeps their offsets. It is not safe for concurrent use.
type Connect struct {
	cfg       ConnectConfig
	dir, libs string
	remove    func()
	process   *child.Process // nil while stopped
	client    *http.Client
	url       string
}

// StartConnect starts Connect and waits until it answers. The caller closes it. The first call downloads the jars with
// Maven.
func StartConnect(ctx context.Context, cfg ConnectConfig) (c *Connect, err error) {
	if len(cfg.Java) == 0 {
		cfg.Java = []string{"-Xmx512m", "-Xms64m", "-XX:+UseSerialGC", "-Xshare:auto", "-Djava.awt.headless=true"}
	}
	c = &Connect{cfg: cfg, client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
	c.libs, err = maven.Jars("debezium-"+DebeziumVersion,
		"io.debezium:debezium-connector-postgres:"+DebeziumVersion, "org.apache.kafka:connect-runtime:"+version(),
		"org.apache.kafka:connect-json:"+version(), logger)
	if err != nil {
		return nil, err
	}
	if c.dir, c.remove, err = child.TempDir("connect"); err != nil {
		return nil, err
	}
	if err = c.Start(ctx); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// Start starts a Connect that was killed, and waits until it answers.
func (c *Connect) Start(ctx context.Context) error {
	port, err := child.FreePort()
	if err != nil {
		return err
	}
	c.url = fmt.Sprintf("http://127.0.0.1:%d", port)
	worker := filepath.Join(c.dir, "worker.properties")
	if err := os.WriteFile(worker, []byte(c.properties()), 0o600); err != nil {
		return err
	}
	args := append(append([]string{}, c.cfg.Java...), "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
		// It logs a warning for every type that exists in two schemas.
		"-Dorg.slf4j.simpleLogger.log.io.debezium.connector.postgresql.TypeRegistry=error",
		"-cp", filepath.Join(c.libs, "*"), "org.apache.kafka.connect.cli.ConnectStandalone", worker)
	cmd := exec.Command("java", args...)
	cmd.Dir = c.dir
	if c.process, err = child.Start(cmd, filepath.Join(c.dir, "connect.log"), syscall.SIGKILL); err != nil {
		c.process = nil
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	return c.Await(ctx, func() (bool, error) {
		return c.Call(ctx, http.MethodGet, "/connectors", nil, nil) == nil,
			nil
	})
}

func (c *Connect) properties() string {
	return strings.Join(append([]string{
		"bootstrap.servers=" + strings.Join(c.cfg.Brokers, ","),
		"listeners=" + c.url,
		"offset.storage.file.filename=" + filepath.Join(c.dir, "offsets"),
		"offset.flush.interval.ms=1000",
		"plugin.discovery=ONLY_SCAN",
		"key.converter=org.apache.kafka.connect.storage.StringConverter",
		"value.converter=org.apache.kafka.connect.storage.StringConverter",
	}, c.cfg.Worker...), "\n") + "\n"
}

// PID is the process id of a running Connect.
func (c *Connect) PID() int { return c.process.PID() }

// LogTail is the end of its log, for error messages.
func (c *Connect) LogTail() string {
	if c.process == nil {
		return "Kafka Connect is not running"
	}
	return c.process.LogTail()
}

// Kill sends SIGKILL.
func (c *Connect) Kill() {
	if c.process != nil {
		c.process.Stop(syscall.SIGKILL, time.Second)
		c.process = nil
	}
}

// Close kills it and removes its files.
func (c *Connect) Close() {
	c.Kill()
	c.remove()
}

// Add starts a connector, or changes the configuration of the one that has this name.
func (c *Connect) Add(ctx context.Context, name string, config map[string]string) error {
	return c.Call(ctx, http.MethodPut, "/connectors/"+name+"/config", config, nil)
}

// Remove stops a connector, which first sends what it has read and commits its offsets.
func (c *Connect) Remove(ctx context.Context, name string) error {
	return c.Call(ctx, http.MethodDelete, "/connectors/"+name, nil, nil)
}

// Await polls done until it is true. It fails if Connect ends.
func (c *Connect) Await(ctx context.Context, done func() (bool, error)) error {
	for {
		if ok, err := done(); ok || err != nil {
			return err
		}
		select {
		case <-c.process.Done():
			return fmt.Errorf("kafkatest: Kafka Connect ended:\n%s", c.process.LogTail())
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.Canceled) {
				return ctx.Err()
			}
			return fmt.Errorf("kafkatest: Kafka Connect: %w\n%s", ctx.Err(), c.process.LogTail())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// Call calls Connect's REST API. It sends in and decodes the answer into out, both as JSON unless nil.
func (c *Connect) Call(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.url+path, body)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := c.client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	answer, err := io.ReadAll(res.Body)
	switch {
	case err != nil:
		return err
	case res.StatusCode >= http.StatusBadRequest:
		return fmt.Errorf("%s %s: %s: %s", method, path, res.Status, answer)
	case out == nil:
		return nil
	}
	return json.Unmarshal(answer, out)
}

// Failure returns the error of a connector or its task that has failed, or nil.
func (c *Connect) Failure(ctx context.Context, name string) error {
	type state struct {
		State string `json:"state"`
		Trace string `json:"trace"`
	}
	var status struct {
		Connector state   `json:"connector"`
		Tasks     []state `json:"tasks"`
	}
	if err := c.Call(ctx, http.MethodGet, "/connectors/"+name+"/status", nil, &status); err != nil {
		return nil // not known yet
	}
	for _, one := range append(status.Tasks, status.Connector) {
		if one.State == "FAILED" {
			return errors.New(one.Trace)
		}
	}
	return nil
}
