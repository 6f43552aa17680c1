package main

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/effectonce/effectonce/internal/kafkaconn"
	"github.com/effectonce/effectonce/internal/service"
	"github.com/effectonce/effectonce/ui"
)

type uiCommand struct {
	database
	kafkaconn.Config
	Listen      string   `default:"127.0.0.1:9188" help:"Address of the pages. Beyond this machine it wants --users or --proxy-header."`
	Prefix      string   `placeholder:"PATH" help:"Path that the pages stand under, behind a proxy that passes it on."`
	Users       string   `placeholder:"PATH" help:"File with a line for each user, name:bcrypt-hash:level, where the level is view, reveal or operate. Read anew when it changes."`
	ProxyHeader string   `placeholder:"NAME" help:"Header in which a proxy that logs people in names them."`
	ProxyFrom   []string `default:"127.0.0.0/8,::1/128" placeholder:"CIDR" help:"Where that proxy connects from. Nobody else's header is believed."`
	ProxyLevel  string   `default:"view" enum:"view,reveal,operate" help:"Level of people whom the proxy names and --users does not."`
}

// Help is the longer text of --help.
func (*uiCommand) Help() string {
	return `Pages for people: what is wrong, what it means, and the verbs that mend it. It connects as --database-url, and what that role may do,
the pages can do: with one that only reads they only show. Without --kafka-brokers the lag of consumers is not shown.

Without --users and --proxy-header it answers to this machine only, and whoever is on it may operate, in the name of the user of this
process. Passwords want TLS: put a proxy before it.`
}

// all: without --outbox the pages show every outbox of the list.
func (*uiCommand) all() {}

func (c *uiCommand) run(ctx context.Context, p *program) error {
	authorize, err := c.door(p)
	if err != nil {
		return err
	}
	databases, closeAll, err := c.databases(ctx)
	defer closeAll()
	if err != nil {
		return err
	}
	cfg := ui.Config{Authorize: authorize, Prefix: c.Prefix}
	if len(c.Brokers) > 0 {
		conn, err := c.Config.New(kafkaTokens)
		if err != nil {
			return &service.UsageError{Err: err}
		}
		client, closeIdle := conn.Client(tailTimeout)
		defer closeIdle()
		cfg.Kafka = client
	}
	pages, err := ui.New(databases, cfg)
	if err != nil {
		return &service.UsageError{Err: err}
	}
	listener, err := service.Listen(c.Listen)
	if err != nil {
		return &service.UsageError{Err: err}
	}
	p.log.Info("listening", "address", listener.Addr().String(), "url", "http://"+listener.Addr().String()+c.Prefix+"/")
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return pages.Run(ctx) })
	g.Go(func() error { return service.ServeOn(ctx, listener, pages) })
	return g.Wait()
}

// door is who may come in. An address that others reach wants somebody who tells them apart.
func (c *uiCommand) door(p *program) (func(*http.Request) (ui.Identity, error), error) {
	host, _, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return nil, service.Usage("--listen: want host:port: %w", err)
	}
	d := &door{header: c.ProxyHeader}
	if d.level, err = ui.ParseLevel(c.ProxyLevel); err != nil {
		return nil, service.Usage("--proxy-level: %w", err)
	}
	for _, text := range c.ProxyFrom {
		from, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, service.Usage("--proxy-from: want networks such as 10.0.0.0/8: %w", err)
		}
		d.from = append(d.from, from)
	}
	if c.Users != "" {
		d.users = &usersFile{path: c.Users}
		if _, err := d.users.read(); err != nil {
			return nil, service.Usage("--users: %w", err)
		}
	}
	if d.users != nil || d.header != "" {
		if d.users != nil && !loopback(host) {
			p.log.Warn("passwords go over the network as they are: put a proxy with TLS before this")
		}
		return d.authorize, nil
	}
	if !loopback(host) {
		return nil, service.Usage("--listen=%s is open to others: --users or --proxy-header must say who they are, or "+
			"listen at 127.0.0.1", c.Listen)
	}
	name, err := operatorName(p, "")
	if err != nil {
		return nil, err
	}
	return here(name), nil
}

// databases opens those that are listed, or the one of --database-url.
func (c *uiCommand) databases(ctx context.Context) (list []ui.Database, closeAll func(), err error) {
	closeAll = func() {
		for _, d := range list {
			d.Pool.Close()
		}
	}
	if !c.several {
		pool, err := c.pool(ctx)
		if err != nil {
			return nil, closeAll, err
		}
		list = append(list, ui.Database{Name: pool.Config().ConnConfig.Database, Pool: pool, Schema: c.Schema})
		return list, closeAll, nil
	}
	named, err := c.outboxes(ctx)
	if err != nil {
		return nil, closeAll, err
	}
	flags := []string{}
	if c.file != "" {
		flags = append(flags, "--config", c.file)
	}
	for _, o := range named {
		of := c.of(o)
		pool, err := of.pool(ctx)
		if err != nil {
			return list, closeAll, err
		}
		list = append(list, ui.Database{
			Name: o.name, Pool: pool, Schema: of.Schema,
			Flags: append(slices.Clone(flags), "--outbox="+o.name),
		})
	}
	return list, closeAll, nil
}
