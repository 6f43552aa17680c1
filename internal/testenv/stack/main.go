// Command teststack starts one Postgres and one Kafka, runs a command with the variables that make tests use them,
// stops both, and exits as the command did: go run ./internal/testenv/stack -- go test ./...
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/effectonce/effectonce/internal/testenv/dynamotest"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

func main() {
	code, err := run(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "teststack:", err)
	}
	os.Exit(code)
}

// run returns the exit code: the command's, or 1 when it never ran.
func run(args []string) (int, error) {
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	if len(args) == 0 {
		return 2, errors.New("want a command: teststack -- go test ./... , `jars` (only fetch Kafka and DynamoDB " +
			"Local) or `cache` (print where things are kept)")
	}
	switch args[0] {
	case "jars":
		kafka, err := kafkatest.Libs()
		if err != nil {
			return 1, err
		}
		dynamo, err := dynamotest.Libs()
		return answer(kafka+"\n"+dynamo, err)
	case "cache":
		cache, err := os.UserCacheDir()
		return answer(filepath.Join(cache, "effectonce"), err)
	}
	return with(args)
}

func answer(line string, err error) (int, error) {
	if err != nil {
		return 1, err
	}
	fmt.Println(line)
	return 0, nil
}

// with runs the command between start and stop of both servers.
func with(args []string) (int, error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	defer pgtest.Stop()
	defer kafkatest.Stop()
	database, err := pgtest.Shared()
	if err != nil {
		return 1, err
	}
	brokers, fake, err := kafkatest.Shared()
	if err != nil {
		return 1, err
	}
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), pgtest.EnvURL+"="+database, kafkatest.EnvBrokers+"="+strings.Join(brokers, ","))
	if fake {
		cmd.Env = append(cmd.Env, kafkatest.EnvFake+"=1")
	}
	// An interrupt lets the tests end by themselves first; a kill would leave their own servers to the kernel.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	err = cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return max(1, exit.ExitCode()), nil // the command has said why
	}
	if err != nil {
		return 1, err
	}
	return 0, nil
}
