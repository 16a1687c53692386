import java.io.IOException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.stream.Collectors;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.RetryOneTime;
import org.redisson.Redisson;
import org.redisson.api.RFencedLock;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/** Locks of Redisson and Curator, for the benchmark; README.md beside this folder has the protocol. */
final class Peer {
    private static final int MAX_CYCLES = 5_000_000;

    /** Takes and gives back one lock, on the thread of its task. */
    interface Lock {
        void acquire() throws Exception;

        void release() throws Exception;
    }

    /** One task: how many cycles it went through, and how long they took. */
    static final class Task implements Callable<Task> {
        final Lock lock;
        final long end;
        final Map<Integer, Integer> wait = new HashMap<>();
        final Map<Integer, Integer> cycle = new HashMap<>();
        int grants;

        Task(Lock lock, long end) {
            this.lock = lock;
            this.end = end;
        }

        @Override
        public Task call() throws Exception {
            for (long now = System.nanoTime(); now < end && grants < MAX_CYCLES; ) {
                long start = now;
                lock.acquire();
                long granted = System.nanoTime();
                lock.release();
                now = System.nanoTime();
                grants++;
                wait.merge(bucket(granted - start), 1, Integer::sum);
                cycle.merge(bucket(now - start), 1, Integer::sum);
            }
            return this;
        }
    }

    static int bucket(long nanos) {
        return (int) (16 * Math.log(Math.max(nanos, 1)) / Math.log(2));
    }

    static RedissonClient redisson(String server) {
        Config config = new Config();
        config.useSingleServer().setAddress("redis://" + server);
        return Redisson.create(config);
    }

    static Lock lock(RLock lock) {
        return new Lock() {
            @Override
            public void acquire() {
                lock.lock();
            }

            @Override
            public void release() {
                lock.unlock();
            }
        };
    }

    static Lock fenced(RFencedLock lock) {
        return new Lock() {
            @Override
            public void acquire() {
                lock.lockAndGetToken();
            }

            @Override
            public void release() {
                lock.unlock();
            }
        };
    }

    static Lock curator(InterProcessMutex mutex) {
        return new Lock() {
            @Override
            public void acquire() throws Exception {
                mutex.acquire();
            }

            @Override
            public void release() throws Exception {
                mutex.release();
            }
        };
    }

    static List<Lock> locks(String peer, String server, List<String> names) throws Exception {
        List<Lock> locks = new ArrayList<>();
        if (peer.equals("InterProcessMutex")) {
            CuratorFramework client = CuratorFrameworkFactory.newClient(server, new RetryOneTime(100));
            client.start();
            client.blockUntilConnected();
            for (String name : names) {
                locks.add(curator(new InterProcessMutex(client, "/curator/" + name)));
            }
            return locks;
        }
        RedissonClient client = redisson(server);
        for (String name : names) {
            boolean fenced = peer.equals("RFencedLock");
            locks.add(fenced ? fenced(client.getFencedLock(name)) : lock(client.getLock(name)));
        }
        return locks;
    }

    static String run(ExecutorService threads, List<Lock> locks, long millis) throws Exception {
        long start = System.nanoTime();
        List<Task> tasks = new ArrayList<>();
        for (Lock lock : locks) {
            tasks.add(new Task(lock, start + millis * 1_000_000));
        }
        List<String> grants = new ArrayList<>();
        Map<Integer, Integer> wait = new TreeMap<>();
        Map<Integer, Integer> cycle = new TreeMap<>();
        for (Future<Task> done : threads.invokeAll(tasks)) {
            Task task = done.get();
            grants.add(Integer.toString(task.grants));
            task.wait.forEach((at, count) -> wait.merge(at, count, Integer::sum));
            task.cycle.forEach((at, count) -> cycle.merge(at, count, Integer::sum));
        }
        double seconds = (System.nanoTime() - start) / 1e9;
        return "{\"seconds\": " + seconds + ", \"grants\": [" + String.join(", ", grants)
                + "], \"wait\": " + json(wait) + ", \"cycle\": " + json(cycle) + "}";
    }

    static String json(Map<Integer, Integer> histogram) {
        return histogram.entrySet().stream()
                .map(e -> "\"" + e.getKey() + "\": " + e.getValue())
                .collect(Collectors.joining(", ", "{", "}"));
    }

    /** The version in the manifest of the library's jar, and the machine's. */
    static String version(String peer) {
        boolean curator = peer.equals("InterProcessMutex");
        String path = (curator ? InterProcessMutex.class : Redisson.class)
                .getProtectionDomain().getCodeSource().getLocation().getPath();
        String jar = path.substring(path.lastIndexOf('/') + 1).replaceAll("\\.jar$", "");
        return jar + ", Java " + Runtime.version().feature();
    }

    static void daemon(Callable<Void> work) {
        Thread thread = new Thread(() -> {
            try {
                work.call();
            } catch (Exception e) {
                e.printStackTrace();
                Runtime.getRuntime().halt(1);
            }
        });
        thread.setDaemon(true);
        thread.start();
    }

    public static void main(String[] args) throws Exception {
        String peer = args[0];
        int tasks = Integer.parseInt(args[2]);
        int count = Integer.parseInt(args[3]);
        long warm = Long.parseLong(args[4]);
        long length = Long.parseLong(args[5]);
        daemon(() -> {
            Thread.sleep(warm + length + 60_000);
            Runtime.getRuntime().halt(3);
            return null;
        });
        List<String> names = new ArrayList<>();
        for (int task = 0; task < tasks; task++) {
            names.add(args[6] + "-" + task % count);
        }
        ExecutorService threads = Executors.newFixedThreadPool(tasks);
        List<Lock> locks = locks(peer, args[1], names);
        run(threads, locks, warm);
        System.out.println("{\"ready\": \"" + version(peer) + "\"}");
        if (line()) {
            daemon(() -> {
                System.out.println(run(threads, locks, length));
                return null;
            });
            while (line()) {
                // Only the end of the input counts.
            }
        }
        Runtime.getRuntime().halt(0);
    }

    /** Whether there was one more line of input. */
    static boolean line() throws IOException {
        for (int read = System.in.read(); read >= 0; read = System.in.read()) {
            if (read == '\n') {
                return true;
            }
        }
        return false;
    }
}
