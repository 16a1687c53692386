// Locks of redsync and of etcd's concurrency package, for the benchmark; README.md beside this folder
// has the protocol.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

const maxCycles = 5_000_000

// locker takes and gives back one lock; each task has its own.
type locker interface {
	Lock(ctx context.Context) error
	Unlock(ctx context.Context) error
}

type redsyncLock struct{ mutex *redsync.Mutex }

func (l redsyncLock) Lock(ctx context.Context) error { return l.mutex.LockContext(ctx) }

func (l redsyncLock) Unlock(ctx context.Context) error {
	_, err := l.mutex.UnlockContext(ctx)
	return err
}

// redsyncLocks ask again after 1 ms; the default is a random delay of 50 to 250 ms, 32 times.
func redsyncLocks(server string, names []string) ([]locker, error) {
	client := redis.NewClient(&redis.Options{Addr: server, PoolSize: len(names)})
	sync := redsync.New(goredis.NewPool(client))
	var locks []locker
	for _, name := range names {
		mutex := sync.NewMutex(name, redsync.WithExpiry(10*time.Second),
			redsync.WithTries(60_000), redsync.WithRetryDelay(time.Millisecond))
		locks = append(locks, redsyncLock{mutex})
	}
	return locks, nil
}

// etcdLocks have a session for each task: a mutex takes two holders of one session for the same.
func etcdLocks(server string, names []string) ([]locker, error) {
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{"http://" + server}, DialTimeout: 10 * time.Second,
	})
	if err != nil {
		return nil, err
	}
	var locks []locker
	for _, name := range names {
		session, err := concurrency.NewSession(client, concurrency.WithTTL(10))
		if err != nil {
			return nil, err
		}
		locks = append(locks, concurrency.NewMutex(session, "/concurrency/"+name))
	}
	return locks, nil
}

type result struct {
	Seconds float64        `json:"seconds"`
	Grants  []int          `json:"grants"`
	Wait    map[string]int `json:"wait"`
	Cycle   map[string]int `json:"cycle"`
}

type taskResult struct {
	grants      int
	wait, cycle map[int]int
	err         error
}

func bucket(d time.Duration) int {
	return int(16 * math.Log2(math.Max(float64(d.Nanoseconds()), 1)))
}

// cycles is one task.
func cycles(ctx context.Context, lock locker, end time.Time) taskResult {
	r := taskResult{wait: map[int]int{}, cycle: map[int]int{}}
	for now := time.Now(); now.Before(end) && r.grants < maxCycles; {
		start := now
		if r.err = lock.Lock(ctx); r.err != nil {
			return r
		}
		granted := time.Now()
		if r.err = lock.Unlock(ctx); r.err != nil {
			return r
		}
		now = time.Now()
		r.grants++
		r.wait[bucket(granted.Sub(start))]++
		r.cycle[bucket(now.Sub(start))]++
	}
	return r
}

func run(locks []locker, length time.Duration) (result, error) {
	// A task that waits for longer than this has been forgotten.
	ctx, cancel := context.WithTimeout(context.Background(), length+30*time.Second)
	defer cancel()
	start := time.Now()
	done := make([]chan taskResult, len(locks))
	for i, lock := range locks {
		done[i] = make(chan taskResult, 1)
		go func() { done[i] <- cycles(ctx, lock, start.Add(length)) }()
	}
	all := result{Wait: map[string]int{}, Cycle: map[string]int{}}
	for _, task := range done {
		r := <-task
		if r.err != nil {
			return all, r.err
		}
		all.Grants = append(all.Grants, r.grants)
		for at, count := range r.wait {
			all.Wait[strconv.Itoa(at)] += count
		}
		for at, count := range r.cycle {
			all.Cycle[strconv.Itoa(at)] += count
		}
	}
	all.Seconds = time.Since(start).Seconds()
	return all, nil
}

var peers = map[string]struct {
	title  string
	module string
	locks  func(server string, names []string) ([]locker, error)
}{
	"redsync":           {"redsync", "github.com/go-redsync/redsync/v4", redsyncLocks},
	"concurrency.Mutex": {"etcd client", "go.etcd.io/etcd/client/v3", etcdLocks},
}

// version of a module, as this program was built with it.
func version(module string) string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return module
	}
	for _, dep := range info.Deps {
		if dep.Path == module {
			return dep.Version + ", " + runtime.Version()
		}
	}
	return module
}

func say(line any) {
	text, err := json.Marshal(line)
	check(err)
	fmt.Println(string(text))
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	if len(os.Args) != 8 {
		check(fmt.Errorf("usage: PEER SERVER TASKS NAMES WARM RUN PREFIX"))
	}
	var numbers [4]int
	for i := range numbers {
		n, err := strconv.Atoi(os.Args[3+i])
		check(err)
		numbers[i] = n
	}
	tasks, count := numbers[0], numbers[1]
	warm, length := time.Duration(numbers[2])*time.Millisecond, time.Duration(numbers[3])*time.Millisecond
	time.AfterFunc(warm+length+time.Minute, func() { os.Exit(3) })
	peer, known := peers[os.Args[1]]
	if !known {
		check(fmt.Errorf("no peer %q", os.Args[1]))
	}
	var names []string
	for task := range tasks {
		names = append(names, fmt.Sprintf("%s-%d", os.Args[7], task%count))
	}
	locks, err := peer.locks(os.Args[2], names)
	check(err)
	_, err = run(locks, warm)
	check(err)
	say(map[string]string{"ready": peer.title + " " + version(peer.module)})
	input := bufio.NewReader(os.Stdin)
	if _, err := input.ReadString('\n'); err != nil {
		os.Exit(0)
	}
	go func() {
		measured, err := run(locks, length)
		check(err)
		say(measured)
	}()
	_, _ = io.Copy(io.Discard, input)
}
