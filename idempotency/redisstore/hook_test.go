package redisstore_test

import (
	"context"
	"slices"

	"github.com/redis/go-redis/v9"
)

// commandHook sees the arguments of every command that a client sends.
type commandHook func(args []any)

func (h commandHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h commandHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (h commandHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h(slices.Clone(cmd.Args()))
		return next(ctx, cmd)
	}
}

// afterPageHook is called when the first page of overdue keys was read, and before any is taken.
type afterPageHook func()

func (h afterPageHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h afterPageHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (h afterPageHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		// a new connection has a pipeline of its own
		if slices.ContainsFunc(cmds, func(c redis.Cmder) bool { return c.Name() == "zrange" }) {
			h()
		}
		return err
	}
}
