package main

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

	process "github.com/effectonce/effectonce/internal/child"
	"github.com/effectonce/effectonce/internal/kafkatest"
)

const debeziumVersion = "3.3.1.Final"

// debeziumPOM names the connector, and the Kafka Connect that runs it.
const debeziumPOM = `<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion><groupId>effectonce</groupId><artifactId>debezium</artifactId><version>1</version>
<dependencies>
<dependency><groupId>io.debezium</groupId><artifactId>debezium-connector-postgres</artifactId><version>3.3.1.Final</version></dependency>
<dependency><groupId>org.apache.kafka</groupId><artifactId>connect-runtime</artifactId><version>4.1.0</version></dependency>
<dependency><groupId>org.apache.kafka</groupId><artifactId>connect-json</artifactId><version>4.1.0</version></dependency>
<dependency><groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>1.7.36</version></dependency>
</dependencies></project>
`

// connectOptions are those of Kafka's own connect-standalone.sh.
var connectOptions = []string{
	"-Xms256M", "-Xmx2G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35",
	"-XX:+ExplicitGCInvokesConcurrent", "-Djava.awt.headless=true",
}

// connectPatience is how long Connect may take to start and to answer on a busy machine.
const connectPatience = 3 * time.Minute

// connect is one Kafka Connect in standalone mode, started for all turns: connectors come and go over its REST interface.
type connect struct {
	process *process.Process
	remove  func()
	url     string
}

// startConnect returns when Connect answers.
func (s *stack) startConnect(ctx context.Context) (c *connect, err error) {
	libs, err := kafkatest.Jars("debezium-"+debeziumVersion, debeziumPOM)
	if err != nil {
		return nil, err
	}
	dir, remove, err := process.TempDir("connect")
	if err != nil {
		return nil, err
	}
	c = &connect{remove: remove}
	defer func() {
		if err != nil {
			c.stop()
		}
	}()
	port, err := process.FreePort()
	if err != nil {
		return c, err
	}
	c.url = fmt.Sprintf("http://127.0.0.1:%d", port)
	worker := filepath.Join(dir, "worker.properties")
	if err := os.WriteFile(worker, []byte(connectWorker(s.brokers, dir, c.url)), 0o600); err != nil {
		return c, err
	}
	args := append(append([]string{}, connectOptions...), "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
		"-cp", filepath.Join(libs, "*"), "org.apache.kafka.connect.cli.ConnectStandalone", worker)
	cmd := exec.Command("java", args...)
	cmd.Dir = dir
	if c.process, err = process.Start(cmd, filepath.Join(dir, "connect.log"), syscall.SIGKILL); err != nil {
		return c, err
	}
	ctx, cancel := context.WithTimeout(ctx, connectPatience)
	defer cancel()
	return c, c.await(ctx, func() (bool, error) { return c.call(ctx, http.MethodGet, "/connectors", nil, nil) == nil, nil })
}

func connectWorker(brokers []string, dir, url string) string {
	return strings.Join([]string{
		"bootstrap.servers=" + strings.Join(brokers, ","),
		"listeners=" + url,
		"offset.storage.file.filename=" + filepath.Join(dir, "offsets"),
		"offset.flush.interval.ms=1000",
		"plugin.discovery=ONLY_SCAN",
		"key.converter=org.apache.kafka.connect.storage.StringConverter",
		"value.converter=org.apache.kafka.connect.storage.StringConverter",
		"producer.acks=all",
		"producer.linger.ms=5",
		"producer.batch.size=262144",
		"producer.buffer.memory=67108864",
		"producer.compression.type=snappy",
	}, "\n") + "\n"
}

// await asks again and again until done says yes, and fails when Connect ends.
func (c *connect) await(ctx context.Context, done func() (bool, error)) error {
	for {
		if ok, err := done(); ok || err != nil {
			return err
		}
		select {
		case <-c.process.Done():
			return fmt.Errorf("Kafka Connect ended:\n%s", c.process.LogTail())
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.Canceled) {
				return ctx.Err()
			}
			return fmt.Errorf("Kafka Connect: %w\n%s", ctx.Err(), c.process.LogTail())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// call sends in as JSON and reads out of the answer; nil: nothing.
func (c *connect) call(ctx context.Context, method, path string, in, out any) error {
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
	res, err := http.DefaultClient.Do(req)
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

// failure is why a connector or its task does not run; nil while it does, or will.
func (c *connect) failure(ctx context.Context, name string) error {
	type state struct {
		State string `json:"state"`
		Trace string `json:"trace"`
	}
	var status struct {
		Connector state   `json:"connector"`
		Tasks     []state `json:"tasks"`
	}
	if err := c.call(ctx, http.MethodGet, "/connectors/"+name+"/status", nil, &status); err != nil {
		return nil // not known yet
	}
	for _, one := range append(status.Tasks, status.Connector) {
		if one.State == "FAILED" {
			return errors.New(one.Trace)
		}
	}
	return nil
}

func (c *connect) stop() {
	if c.process != nil {
		c.process.Stop(syscall.SIGKILL, time.Second) // its files go too
	}
	c.remove()
}
