package main

import (
	"context"

	"github.com/effectonce/effectonce/cmd/internal/service"
)

// devCommand names another program: with the download of Postgres and the fake Kafka this one would be a fifth larger.
type devCommand struct {
	Args []string `arg:"" optional:"" passthrough:"" help:"Its flags."`
}

func (*devCommand) noDatabase() {}

func (*devCommand) run(context.Context, *program) error {
	return service.Usage("the development server is a program of its own, with Postgres and Kafka in it. In a " +
		"checkout of the project: go run ./cmd/relay-dev --seed")
}
