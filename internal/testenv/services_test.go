package testenv

import (
	"net"
	"syscall"
	"testing"
	"time"
)

func dialable(addr string) error {
	c, err := net.DialTimeout("tcp", addr, time.Second)
	if err == nil {
		c.Close()
	}
	return err
}

func TestRedisServiceLives(t *testing.T) {
	s := Redis(t)
	if err := redisReady(s.Addr, true); err != nil {
		t.Fatal(err)
	}
	s.Stop()
	if err := dialable(s.Addr); err == nil {
		t.Fatal("the stopped server still accepts")
	}
	s.Start()
	if err := dialable(s.Addr); err != nil {
		t.Fatal(err)
	}
	s.Signal(syscall.SIGSTOP)
	if err := redisReady(s.Addr, true); err == nil {
		t.Fatal("a server under SIGSTOP answers")
	}
	s.Signal(syscall.SIGCONT)
	Eventually(t, 10*time.Second, func() error { return redisReady(s.Addr, true) })
}

func TestEtcdClusterElectsAgain(t *testing.T) {
	c := EtcdCluster(t, 3)
	old := Leader(t, c)
	old.Stop()
	if now := Leader(t, c, old); now == old {
		t.Fatal("the killed member still leads")
	}
	old.Start()
}
