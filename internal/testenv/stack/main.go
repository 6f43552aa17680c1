// Command teststack starts a Postgres and a Kafka, runs a command with environment variables that make tests use them,
// and exits with the command's exit code: go run ./internal/testenv/stack -- go test ./...
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/effectonce/effectonce/internal/testenv/child"
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

// run returns the exit code: the command's, or 1 if it did not run.
func run(args []string) (int, error) {
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	if len(args) == 0 {
		return 2, errors.New("want a command, as in teststack -- go test ./... , or `fetch` (only download the " +
			"servers) or `cache` (print the cache's directory)")
	}
	switch args[0] {
	case "fetch":
		for _, fetch := range []func() (string, error){
			pgtest.Programs, kafkatest.Libs, kafkatest.SecureLibs, kafkatest.HandlerLibs, dynamotest.Libs,
		} {
			if code, err := printLine(fetch()); err != nil {
				return code, err
			}
		}
		return 0, nil
	case "cache":
		cache, err := os.UserCacheDir()
		return printLine(filepath.Join(cache, "effectonce"), err)
	}
	return runWithServers(args)
}

func printLine(line string, err error) (int, error) {
	if err != nil {
		return 1, err
	}
	fmt.Println(line)
	return 0, nil
}

// runWithServers starts both servers, runs the command, and stops the servers.
func runWithServers(args []string) (int, error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	go func(parent int) { // `go run` and make end by SIGTERM without a word to this process
		for !child.Orphaned(parent) {
			time.Sleep(time.Second)
		}
		stop()
	}(os.Getppid())
	defer pgtest.Stop()
	defer kafkatest.Stop()
	database, err := pgtest.Environ()
	if err != nil {
		return 1, err
	}
	brokers, err := kafkatest.Environ()
	if err != nil {
		return 1, err
	}
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = slices.Concat(os.Environ(), database, brokers)
	child.Group(cmd) // an interrupt, so that the tests can stop their servers
	err = cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return max(1, exit.ExitCode()), nil // the command has printed its error
	}
	if err != nil {
		return 1, err
	}
	return 0, nil
}
