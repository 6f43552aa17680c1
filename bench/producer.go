package main

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// producerProps are the settings of Kafka's own ProducerPerformance that matter to its rate.
type producerProps struct {
	BatchSize   int
	LingerMS    int
	Compression string
}

func (p producerProps) String() string {
	return fmt.Sprintf("batch.size=%d linger.ms=%d compression.type=%s", p.BatchSize, p.LingerMS, p.Compression)
}

// javaOptions are those of Kafka's own producer-perf-test.sh.
var javaOptions = []string{
	"-Xmx512M", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20",
	"-XX:InitiatingHeapOccupancyPercent=35",
}

// The summary line: "300000 records sent, 114285.7 records/sec (55.80 MB/sec), 12.3 ms avg latency, ...". The lines of
// each five seconds look alike, so the last one counts.
var producerLine = regexp.MustCompile(`(\d+) records sent, ([0-9.]+) records/sec`)

// producerPerformance sends n of the file's payloads at full speed, with the default acks=all and idempotence, without
// keys and headers, and returns the rate that it prints. The rate excludes the start of the JVM; cpu, the seconds of
// its process, includes it.
func (s *stack) producerPerformance(ctx context.Context, topic, file string, n int, p producerProps) (rate, cpu float64,
	err error,
) {
	args := append(append([]string{}, javaOptions...),
		"-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", filepath.Join(s.libs, "*"),
		"org.apache.kafka.tools.ProducerPerformance",
		"--topic", topic, "--num-records", strconv.Itoa(n), "--throughput", "-1", "--payload-file", file,
		"--producer-props",
		"bootstrap.servers="+strings.Join(s.brokers, ","), "acks=all", "buffer.memory=67108864",
		"batch.size="+strconv.Itoa(p.BatchSize), "linger.ms="+strconv.Itoa(p.LingerMS), "compression.type="+
			p.Compression)
	cmd := exec.CommandContext(ctx, "java", args...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return 0, 0, fmt.Errorf("ProducerPerformance: %w\n%s", err, tail(out))
	}
	lines := producerLine.FindAllSubmatch(out, -1)
	if len(lines) == 0 {
		return 0, 0, fmt.Errorf("ProducerPerformance printed no rate:\n%s", tail(out))
	}
	last := lines[len(lines)-1]
	if sent, _ := strconv.Atoi(string(last[1])); sent != n {
		return 0, 0, fmt.Errorf("ProducerPerformance sent %d of %d records:\n%s", sent, n, tail(out))
	}
	rate, err = strconv.ParseFloat(string(last[2]), 64)
	return rate, (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds(), err
}

// tail returns the end of an output, which can be long if no broker answers.
func tail(out []byte) []byte { return out[max(0, len(out)-2000):] }
