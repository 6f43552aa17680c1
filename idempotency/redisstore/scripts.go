package redisstore

import (
	"embed"

	"github.com/redis/go-redis/v9"
)

//go:embed lua
var sources embed.FS

// scripts are sent by their hash, and whole where the server does not know them (yet, or after its restart).
type scripts struct {
	claim, get, extend, save, finish, release, shelve, recover *redis.Script
}

func newScripts() scripts {
	return scripts{
		claim: script("claim"), get: script("get"), extend: script("extend"), save: script("save"),
		finish: script("finish"), release: script("release"), shelve: script("shelve"), recover: script("recover"),
	}
}

func script(name string) *redis.Script {
	return redis.NewScript(source("common") + source(name))
}

func source(name string) string {
	b, err := sources.ReadFile("lua/" + name + ".lua")
	if err != nil {
		panic(err) // it is compiled in, or the package is broken
	}
	return string(b)
}
