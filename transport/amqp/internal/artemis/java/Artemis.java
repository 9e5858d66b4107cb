import java.io.File;
import java.util.Map;
import org.apache.activemq.artemis.core.config.impl.ConfigurationImpl;
import org.apache.activemq.artemis.core.remoting.impl.netty.NettyAcceptor;
import org.apache.activemq.artemis.core.server.JournalType;
import org.apache.activemq.artemis.core.server.embedded.EmbeddedActiveMQ;
import org.apache.activemq.artemis.spi.core.security.ActiveMQJAASSecurityManager;

/**
 * Runs an Artemis broker with one AMQP acceptor until standard input ends, so that the broker does
 * not outlive the program that started it. Prints "ready PORT" once the broker serves.
 *
 * Arguments: the data directory, the URL of the acceptor, and the file of broker properties.
 */
public class Artemis {
    public static void main(String[] args) throws Exception {
        File data = new File(args[0]);
        ConfigurationImpl c = new ConfigurationImpl();
        c.setPersistenceEnabled(true).setJournalType(JournalType.NIO);
        c.setJournalDirectory(new File(data, "journal").getPath());
        c.setBindingsDirectory(new File(data, "bindings").getPath());
        c.setPagingDirectory(new File(data, "paging").getPath());
        c.setLargeMessagesDirectory(new File(data, "large").getPath());
        c.setConfigurationFileRefreshPeriod(-1);
        c.addAcceptorConfiguration("amqp", args[1]);
        EmbeddedActiveMQ embedded = new EmbeddedActiveMQ();
        embedded.setConfiguration(c).setPropertiesResourcePath(args[2]);
        embedded.setSecurityManager(new ActiveMQJAASSecurityManager("artemis", "artemis-certificates"));
        embedded.start();
        String status = c.getStatus();
        if (status != null && status.contains("\"errors\":[{")) {
            System.err.println("the properties have faults: " + status);
            System.exit(2);
        }
        NettyAcceptor acceptor = (NettyAcceptor) embedded.getActiveMQServer().getRemotingService().getAcceptor("amqp");
        System.out.println("ready " + acceptor.getActualPort());
        System.out.flush();
        while (System.in.read() >= 0) {
            // The content has no meaning.
        }
        embedded.stop();
        System.exit(0);
    }
}
