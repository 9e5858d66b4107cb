package org.apache.pulsar;

import java.io.FileInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.util.HashSet;
import java.util.Properties;
import java.util.Set;
import org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage;
import org.apache.bookkeeper.bookie.storage.ldb.SingleDirectoryDbLedgerStorage;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.pulsar.broker.ServiceConfiguration;
import org.apache.pulsar.broker.authentication.AuthenticationProviderBasic;
import org.apache.pulsar.broker.authentication.AuthenticationProviderToken;

/**
 * Runs a Pulsar broker, its bookie and its metadata store in this process until standard input
 * ends, so that the broker does not outlive the program that started it. Prints
 * "ready BROKER_PORT WEB_PORT" once the broker serves. BROKER_PORT is the port of TLS if the broker
 * has one.
 *
 * Arguments: the data directory and the file of settings. The class is in Pulsar's package because
 * the broker's ports are visible only there.
 */
public class Standalone extends PulsarStandaloneStarter {
    private static volatile boolean ready;

    private Standalone(String... args) throws Exception {
        super(args);
    }

    public static void main(String[] args) throws Exception {
        Thread input = new Thread(Standalone::endWithInput, "standard input");
        input.setDaemon(true);
        input.start();
        try {
            checkNames(args[1]);
            Standalone s = new Standalone("--config", args[1], "--no-functions-worker", "--no-stream-storage",
                "--metadata-dir", args[0] + "/metadata", "--bookkeeper-dir", args[0] + "/bookkeeper");
            s.start();
            int port = s.broker.getBrokerListenPortTls().or(s.broker::getBrokerListenPort).orElseThrow();
            ready = true;
            System.out.println("ready " + port + " " + s.broker.getListenPortHTTP().orElseThrow());
        } catch (Throwable e) { // also the errors of class loading
            e.printStackTrace();
            for (Throwable cause = e; cause != null; cause = cause.getCause()) {
                System.err.println(cause); // the last lines are those that a person reads
            }
            Runtime.getRuntime().halt(1);
        }
    }

    private static void endWithInput() {
        try {
            while (System.in.read() >= 0) {
                // The content has no meaning.
            }
        } catch (IOException e) {
            e.printStackTrace();
        }
        if (!ready) {
            Runtime.getRuntime().halt(1); // the shutdown of a broker that starts can wait for its start
        }
        System.exit(0);
    }

    /** Rejects the settings that no part of the server has: Pulsar ignores them. */
    private static void checkNames(String file) throws Exception {
        Set<String> known = new HashSet<>();
        for (Field f : ServiceConfiguration.class.getDeclaredFields()) {
            known.add(f.getName());
        }
        for (Class<?> c : new Class<?>[] {DbLedgerStorage.class, SingleDirectoryDbLedgerStorage.class,
                AuthenticationProviderToken.class, AuthenticationProviderBasic.class}) {
            addConstants(c, known);
        }
        for (Class<?> c = ServerConfiguration.class; c.getName().startsWith("org.apache.bookkeeper"); c = c.getSuperclass()) {
            addConstants(c, known);
        }
        Properties settings = new Properties();
        try (InputStream in = new FileInputStream(file)) {
            settings.load(in);
        }
        for (String name : settings.stringPropertyNames()) {
            // Settings of the clients within the broker have a prefix and any name.
            if (!known.contains(name) && !name.startsWith("bookkeeper_") && !name.startsWith("brokerClient_")) {
                throw new IllegalArgumentException("Pulsar has no setting " + name);
            }
        }
    }

    private static void addConstants(Class<?> c, Set<String> names) throws IllegalAccessException {
        for (Field f : c.getDeclaredFields()) {
            if (Modifier.isStatic(f.getModifiers()) && f.getType() == String.class && f.trySetAccessible()) {
                names.add((String) f.get(null));
            }
        }
    }
}
