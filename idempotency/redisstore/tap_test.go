package redisstore_test

import (
	"context"
	"slices"

	"github.com/redis/go-redis/v9"
)

// tap sees the arguments of every command that a client sends.
type tap func(args []any)

func (h tap) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h tap) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (h tap) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h(slices.Clone(cmd.Args()))
		return next(ctx, cmd)
	}
}

// afterPage is called when the first page of overdue keys was read, and before any is taken.
type afterPage func()

func (h afterPage) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h afterPage) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (h afterPage) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		// a new connection has a pipeline of its own
		if slices.ContainsFunc(cmds, func(c redis.Cmder) bool { return c.Name() == "zrange" }) {
			h()
		}
		return err
	}
}
